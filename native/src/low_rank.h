// The operator for the small matrices of adapters (low_rank.cpp).
#pragma once
#include "operator.h"

namespace native {

ort::CustomOp low_rank_operator();

}  // namespace native
