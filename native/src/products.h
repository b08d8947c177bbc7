// The operators for products with packed weights (products.cpp).
#pragma once
#include "operator.h"

namespace native {

ort::CustomOp packed_matmul_operator();
ort::CustomOp packed_experts_operator();

}  // namespace native
