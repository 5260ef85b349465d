// What a router says about the tokens of one micro-batch.
//
// Letters of this folder: T tokens, D model, F expert hidden, E experts, K chosen, R rows (token
// copies at experts), G groups of rows (experts that this rank computes).
#pragma once

#include "core/autograd/variable.h"

namespace meshfold::moe {

struct Routing {
  // f32 [T, K]: factor on the output of each chosen expert, in the order of ids_TK.
  Variable weights_TK;
  // i32 [T, K]: chosen experts, best first, no repeats in a row.
  Tensor ids_TK;
  // f32 [T, E]: what the balance loss averages. Rows sum to 1: the softmax of the logits (taken
  // once), or sigmoid scores over their sum. Undefined when the options ask for no balance loss.
  Variable scores_TE;
  // f32 [T, E]: before softmax or sigmoid.
  Variable logits_TE;
};

}  // namespace meshfold::moe
