// Operators of layers that keep a state of fixed size for each sequence (states.cpp).
#pragma once
#include "operator.h"

namespace native {

ort::CustomOp convolution_operator();
ort::CustomOp linear_attention_operator();

}  // namespace native
