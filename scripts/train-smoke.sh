#!/bin/sh
# Every training command at tiny scale on the CPU, and its files read by carat (25 s).
set -eu
cd "$(dirname "$0")/../train"
carat=../build/release/apps/carat
python=/usr/bin/python3 # Debian's: python3-torch is a module of this one
export OMP_WAIT_POLICY=passive
$python -m carat_train smoke --carat "$carat"
$python -m unittest discover tests
