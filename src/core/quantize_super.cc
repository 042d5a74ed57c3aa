// Super-block formats: q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs.
#include "core/quantize_super.h"

#include <cstring>

namespace carat::quant {

namespace {

void put16(std::byte* p, uint16_t v) { std::memcpy(p, &v, 2); }

// x ~ d * scale * code - dmin * min with scales and minima in 0..limit, codes 0..top.
class MinimumSearch {
 public:
  MinimumSearch(const Group& g, int n, int top, int limit)
      : book_{0, static_cast<float>(top)}, g_(g), n_(n), groups_(256 / n), limit_(limit) {}

  Super run() {
    float scale = 0, min = 0;
    for (int i = 0; i < groups_; ++i) {
      fitted_[i] = fit_affine(part(g_, i, n_), static_cast<int>(book_.hi), true);
      scale = std::max(scale, fitted_[i].scale);
      min = std::max(min, -fitted_[i].min);
    }
    const float limit = static_cast<float>(limit_), d = scale / limit, dmin = min / limit;
    try_scales(d, dmin);
    // A coarse grid of scales is worth placing with care; a fine one is not.
    if (limit_ < 32)
      for (int k = -2; k <= 2; ++k)
        for (int j = -2; j <= 2; ++j)
          try_scales(d * (1 + 0.4f * static_cast<float>(k) / limit),
                     dmin * (1 + 0.4f * static_cast<float>(j) / limit));
    for (int turn = 0; turn < 4; ++turn)
      if (!refit()) break;
    for (int i = 0; i < groups_; ++i) {
      const float s = f16_to_f32(best_.d) * static_cast<float>(best_.scale[i]);
      const float m = f16_to_f32(best_.dmin) * static_cast<float>(best_.min[i]);
      codes(book_, part(g_, i, n_), s, m, best_.code + i * n_);
    }
    return best_;
  }

 private:
  bool try_scales(float d, float dmin) {
    bool better = false;
    const auto ds = f16_around(d), mins = f16_around(dmin);
    const size_t n_d = ds[0] < 0x400 ? 3 : 1, n_min = mins[0] < 0x400 && dmin > 0 ? 3 : 1;
    for (size_t i = 0; i < n_d; ++i)
      for (size_t j = 0; j < n_min; ++j) better |= try_halves(ds[i], mins[j]);
    return better;
  }

  int to_grid(float v) const {
    return static_cast<int>(std::clamp(std::round(v), 0.0f, static_cast<float>(limit_)));
  }

  bool try_halves(uint16_t hd, uint16_t hmin) {
    const float d = f16_to_f32(hd), dmin = f16_to_f32(hmin);
    const float inv = d != 0 ? 1 / d : 0, inv_min = dmin != 0 ? 1 / dmin : 0;
    Super s;
    s.d = hd;
    s.dmin = hmin;
    float total = 0;
    for (int i = 0; i < groups_ && total < best_error_; ++i) {
      const int scale = to_grid(fitted_[i].scale * inv), min = to_grid(-fitted_[i].min * inv_min);
      float best = std::numeric_limits<float>::infinity();
      for (int a = std::max(scale - 1, 0); a <= std::min(scale + 1, limit_); ++a)
        for (int b = std::max(min - 1, 0); b <= std::min(min + 1, limit_); ++b) {
          const float e =
              error(book_, part(g_, i, n_), d * static_cast<float>(a), dmin * static_cast<float>(b));
          if (e < best) best = e, s.scale[i] = a, s.min[i] = b;
        }
      total += best;
    }
    if (!(total < best_error_)) return false;
    best_error_ = total;
    best_ = s;
    return true;
  }

  // Least squares for d and dmin with everything else as in the best; then the search around them.
  bool refit() {
    const float d0 = f16_to_f32(best_.d), dmin0 = f16_to_f32(best_.dmin);
    double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    for (int i = 0; i < groups_; ++i) {
      const float a = static_cast<float>(best_.scale[i]), b = static_cast<float>(best_.min[i]);
      const float s = d0 * a, inv = s != 0 ? 1 / s : 0;
      Lanes w1{}, wl{}, wll{}, wx{}, wxl{};
      for (int k = i * n_; k < (i + 1) * n_; k += 4) {
        const Lanes x = at(g_.x + k), w = at(g_.w + k), l = book_.nearest((x + dmin0 * b) * inv), v = w * l;
        w1 += w, wl += v, wll += v * l, wx += w * x, wxl += v * x;
      }
      aa += double{a} * a * sum(wll), ab += double{a} * b * sum(wl), bb += double{b} * b * sum(w1);
      xa += double{a} * sum(wxl), xb += double{b} * sum(wx);
    }
    const double det = aa * bb - ab * ab;
    if (det > 1e-9 * aa * bb) {
      const double d = (xa * bb - xb * ab) / det, dmin = (xa * ab - xb * aa) / det;
      if (d > 0 && dmin > 0) return try_scales(static_cast<float>(d), static_cast<float>(dmin));
    }
    return aa > 0 && xa > 0 && try_scales(static_cast<float>(xa / aa), 0);
  }

  const Uniform book_;
  const Group& g_;
  const int n_, groups_, limit_;
  Affine fitted_[16];
  Super best_;
  float best_error_ = std::numeric_limits<float>::infinity();
};

Super search_scaled(const Group& g, float code_lo, int scale_lo) {
  const Uniform book{code_lo, -code_lo - 1};
  float fitted[16];
  for (int i = 0; i < 16; ++i) fitted[i] = fit_scale(book, part(g, i, 16), 0.1f, 10);
  return ScaledSearch<Uniform>(book, g, 16, scale_lo, -scale_lo - 1).run(fitted);
}

uint8_t code(const Super& s, int e, int offset) {
  return static_cast<uint8_t>(static_cast<int>(s.code[e]) + offset);
}

// Four 2-bit codes to a byte: column e = 128 n + 32 j + l at bits 2j of byte 32 n + l.
template <class Code>
void put_two_bits(std::byte* p, Code c) {
  for (int e = 0; e < 256; ++e)
    p[32 * (e / 128) + e % 32] |= static_cast<std::byte>((c(e) & 3) << 2 * (e / 32 % 4));
}

void put_scales_and_mins(const Super& s, std::byte* p) {
  const auto byte = [](int v) { return static_cast<std::byte>(v); };
  for (int i = 0; i < 4; ++i) {
    p[i] = byte(s.scale[i] | (s.scale[i + 4] >> 4) << 6);
    p[i + 4] = byte(s.min[i] | (s.min[i + 4] >> 4) << 6);
    p[i + 8] = byte((s.scale[i + 4] & 15) | (s.min[i + 4] & 15) << 4);
  }
}

void put_nibble_pairs(const Super& s, std::byte* p) {
  for (int i = 0; i < 128; ++i) {
    const int e = 64 * (i / 32) + i % 32;
    p[i] = static_cast<std::byte>((code(s, e, 0) & 15) | (code(s, e + 32, 0) & 15) << 4);
  }
}

}  // namespace

void encode_q2_k(const Group& g, std::byte* b) {
  const Super s = MinimumSearch(g, 16, 3, 15).run();
  std::memset(b, 0, 84);
  for (int i = 0; i < 16; ++i) b[i] = static_cast<std::byte>(s.scale[i] | s.min[i] << 4);
  put_two_bits(b + 16, [&](int e) { return code(s, e, 0); });
  put16(b + 80, s.d);
  put16(b + 82, s.dmin);
}

void encode_q4_k(const Group& g, std::byte* b) {
  const Super s = MinimumSearch(g, 32, 15, 63).run();
  put16(b, s.d);
  put16(b + 2, s.dmin);
  put_scales_and_mins(s, b + 4);
  put_nibble_pairs(s, b + 16);
}

void encode_q5_k(const Group& g, std::byte* b) {
  const Super s = MinimumSearch(g, 32, 31, 63).run();
  std::memset(b, 0, 176);
  put16(b, s.d);
  put16(b + 2, s.dmin);
  put_scales_and_mins(s, b + 4);
  for (int e = 0; e < 256; ++e) b[16 + e % 32] |= static_cast<std::byte>((code(s, e, 0) >> 4) << e / 32);
  put_nibble_pairs(s, b + 48);
}

void encode_q3_k(const Group& g, std::byte* b) {
  const Super s = search_scaled(g, -4, -32);
  std::memset(b, 0, 110);
  for (int e = 0; e < 256; ++e) b[e % 32] |= static_cast<std::byte>((code(s, e, 4) >> 2) << e / 32);
  put_two_bits(b + 32, [&](int e) { return code(s, e, 4); });
  for (int i = 0; i < 16; ++i) {
    const int v = s.scale[i] + 32;
    b[96 + i % 8] |= static_cast<std::byte>((v & 15) << 4 * (i / 8));
    b[104 + i % 4] |= static_cast<std::byte>((v >> 4) << 2 * (i / 4));
  }
  put16(b + 108, s.d);
}

void encode_q6_k(const Group& g, std::byte* b) {
  const Super s = search_scaled(g, -32, -128);
  std::memset(b, 0, 210);
  for (int e = 0; e < 256; ++e) {
    const int n = e / 128, j = e / 32 % 4, l = e % 32;
    b[64 * n + l + 32 * (j & 1)] |= static_cast<std::byte>((code(s, e, 32) & 15) << 4 * (j >> 1));
  }
  put_two_bits(b + 128, [&](int e) { return code(s, e, 32) >> 4; });
  for (int i = 0; i < 16; ++i) b[192 + i] = static_cast<std::byte>(s.scale[i]);
  put16(b + 208, s.d);
}

void encode_iq4_xs(const Group& g, std::byte* b) {
  const Iq4Book book;
  float fitted[8];
  for (int i = 0; i < 8; ++i) fitted[i] = fit_scale(book, part(g, i, 32), 1.0f, 12);
  const Super s = ScaledSearch<Iq4Book>(book, g, 32, -32, 31).run(fitted);
  std::memset(b, 0, 136);
  put16(b, s.d);
  uint16_t high = 0;
  for (int i = 0; i < 8; ++i) {
    const int v = s.scale[i] + 32;
    b[4 + i / 2] |= static_cast<std::byte>((v & 15) << 4 * (i & 1));
    high = static_cast<uint16_t>(high | (v >> 4) << 2 * i);
    for (int k = 0; k < 16; ++k) {
      const int low = Iq4Book::index(s.code[32 * i + k]), top = Iq4Book::index(s.code[32 * i + 16 + k]);
      b[8 + 16 * i + k] = static_cast<std::byte>(low | top << 4);
    }
  }
  put16(b + 2, high);
}

}  // namespace carat::quant
