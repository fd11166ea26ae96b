// Python's Options, Peer and Listener.
#pragma once

#include <memory>

#include "engine/fabric.h"
#include "transport/listener.h"

struct PyListener {
  ring::Listener listener;
  int port = 0;
};
