// The addresses of a rank, tried in turn.
#include <cerrno>

#include "check.h"
#include "rendezvous/route.h"

using ring::Route;

TEST(one_address_has_all_the_time_and_refuses_alone) {
  Route route({"a"});
  CHECK(!route.several());
  CHECK_EQ(route.patience(10), 10.0);
  CHECK(!route.refused_for(0));
  route.note(ECONNREFUSED);
  CHECK(route.refused_for(0));
  CHECK(!route.refused_for(60 * 1000 * 1000));
  route.note(EHOSTUNREACH);
  CHECK(!route.refused_for(0));
  CHECK(route.next());
  CHECK_EQ(route.address(), "a");
}

TEST(several_addresses_take_turns_with_growing_patience) {
  Route route({"a", "b", "c"});
  CHECK_EQ(route.patience(10), 1.0);
  CHECK_EQ(route.address(), "a");
  CHECK(!route.next());
  CHECK_EQ(route.address(), "b");
  CHECK(!route.next());
  CHECK(route.next());
  CHECK_EQ(route.address(), "a");
  CHECK_EQ(route.rounds(), 1);
  CHECK_EQ(route.patience(10), 2.0);
  for (int i = 0; i < 100; ++i) route.next();
  CHECK_EQ(route.patience(10), 10.0);
}

TEST(a_rank_is_gone_only_if_every_address_refuses) {
  Route route({"a", "b"});
  route.note(ECONNREFUSED);
  CHECK(!route.refused_for(0));
  route.next();
  route.note(ETIMEDOUT);
  route.next();
  route.note(ECONNREFUSED);
  CHECK(!route.refused_for(0));
  route.next();
  route.note(ECONNREFUSED);
  CHECK(route.refused_for(0));
  route.note(0);
  CHECK(!route.refused_for(0));
}
