// Several devices as one backend: a program is split into a part for each, which run at the same time and
// meet in Share operations (docs/design.md, "Parts"). Whatever is computed is computed by one device, with
// the bits that one device alone would give it; nothing is summed across devices.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/exchange.h"

namespace carat {

enum class SplitMode : uint8_t {
  layer,  // a device has some of the layers; rows of the residual stream go from one to the next
  tensor  // a device has some outputs of every product and some heads of every cache
};

struct PartsOptions {
  SplitMode mode = SplitMode::layer;
  std::vector<double> shares = {};  // of the weights, by device; empty: as much each
  // SplitMode::layer: the layers of the model, and the first one of each device, ascending.
  int32_t layers = 0;
  std::vector<int32_t> first_layer = {};
  std::shared_ptr<Exchange> exchange = {};  // null: devices whose memory is the host's
};
// At most kMaxParts devices. Weights come to them when the first program is compiled that reads them.
std::unique_ptr<Backend> make_parts(std::vector<std::shared_ptr<Backend>> devices,
                                    const PartsOptions& options);

// The first layer of each device where layers have so many bytes and devices such shares: layers in order,
// every device as near to its share as they allow.
std::vector<int32_t> deal_layers(const std::vector<int64_t>& layer_bytes, const std::vector<double>& shares);

}  // namespace carat
