#include "check.h"
#include "rendezvous/sha256.h"

namespace {

ring::ByteView view(const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string hex(const ring::Digest& digest) {
  std::string text;
  char two[3];
  for (const std::byte byte : digest) {
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(byte));
    text += two;
  }
  return text;
}

std::string mac(const std::string& key, const std::string& message) {
  return hex(ring::hmac_sha256(view(key), view(message)));
}

}  // namespace

TEST(digests_of_the_standard) {
  CHECK_EQ(hex(ring::sha256(view(""))), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(hex(ring::sha256(view("abc"))),
           "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(hex(ring::sha256(view("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(hex(ring::sha256(view(std::string(1000000, 'a')))),
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(pieces_give_the_digest_of_the_whole) {
  const std::string text(300, 'x');
  for (size_t cut = 0; cut <= text.size(); cut += 7) {
    ring::Sha256 hash;
    hash.update(view(text.substr(0, cut)));
    hash.update(view(text.substr(cut)));
    CHECK_EQ(hex(hash.finish()), hex(ring::sha256(view(text))));
  }
}

TEST(hmacs_of_rfc_4231) {
  CHECK_EQ(mac(std::string(20, '\x0b'), "Hi There"),
           "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK_EQ(mac("Jefe", "what do ya want for nothing?"),
           "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK_EQ(mac(std::string(20, '\xaa'), std::string(50, '\xdd')),
           "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK_EQ(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
           "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(comparison_sees_every_byte) {
  const ring::Digest one = ring::sha256(view("one"));
  for (size_t i = 0; i < one.size(); ++i) {
    ring::Digest other = one;
    other[i] ^= std::byte{1};
    CHECK(!ring::same_digest(one, other));
  }
  CHECK(ring::same_digest(one, one));
}
