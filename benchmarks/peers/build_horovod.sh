#!/usr/bin/env bash
# Builds Horovod 0.28.1 with gloo into the environment of the given python. Its own C++ standards are too old for
# the headers of today's torch: C++20 there and in general, C++17 for gloo.
set -euo pipefail
python=$(realpath -s "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m pip install -q "${TORCH:-torch>=2.4,<2.14}" numpy "cmake<4" "setuptools<81" wheel cloudpickle psutil pyyaml packaging cffi
"$python" -m pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$folder" horovod==0.28.1
tar xzf "$folder"/horovod-0.28.1.tar.gz -C "$folder"
cd "$folder"/horovod-0.28.1
sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 20/' CMakeLists.txt horovod/torch/CMakeLists.txt
sed -i 's/-std=c++11/-std=c++17 -include cstdint/' third_party/gloo/CMakeLists.txt
export PATH="$(dirname "$python"):$PATH" HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
  HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO MAKEFLAGS=-j2
"$python" -m pip install -q --no-build-isolation --no-deps .
"$python" -c "import horovod.torch"
