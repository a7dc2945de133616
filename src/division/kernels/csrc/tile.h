// Small planes of any layout to and from W lanes: a tile [elements, W] of floats.
#pragma once

#include "map.h"
#include "transpose.h"

namespace division {
namespace DIVISION_ISA {

// Calls `visit(element, offset)` for the elements of a plane, in order.
template <class Visit>
INLINE void each_element(const Map& map, const Visit& visit) {
  int64_t e = 0;
  for (int64_t i0 = 0; i0 < map.size[0]; i0++) {
    for (int64_t i1 = 0; i1 < map.size[1]; i1++) {
      for (int64_t j = 0; j < map.size[2]; j++, e++) {
        visit(e, i0 * map.stride[0] + i1 * map.stride[1] + j * map.stride[2]);
      }
    }
  }
}

// Where `count` planes from `plane` on begin.
template <class T>
INLINE void planes_at(T* x, const Map& map, int64_t plane, int count, T** at) {
  int64_t channel = plane % map.channels;
  T* p = x + map.plane_offset(plane);
  for (int l = 0; l < count; l++) {
    at[l] = p;
    p += map.channel_stride;
    if (++channel < map.channels) continue;
    channel = 0;
    p += map.sample_stride - map.channels * map.channel_stride;
  }
}

template <class T>
void gather_tile(const T* x, const Map& map, int64_t plane, int count, float* tile) {
  const T* from[W];
  planes_at(x, map, plane, count, from);
  for (int l = count; l < W; l++) from[l] = from[0];
  if (!map.dense_planes()) {
    each_element(map, [&](int64_t e, int64_t offset) {
      for (int l = 0; l < W; l++) tile[e * W + l] = value(from[l] + offset);
    });
    return;
  }
  const int64_t elements = map.elements();
  const bool more = plane + 2 * W <= map.planes();
  const int64_t ahead = more ? x + map.plane_offset(plane + W) - from[0] : 0;
  if (elements < W) {
    F rows[W];
    for (int l = 0; l < W; l++) rows[l] = load_some(from[l], int(elements), F{});
    transpose(rows);
    for (int64_t k = 0; k < elements; k++) store(tile + k * W, rows[k]);
    return;
  }
  for (int64_t next = 0; next < elements; next += W) {
    if (elements - next <= 2) {  // not worth another transpose
      for (int64_t e = next; e < elements; e++) {
        for (int l = 0; l < W; l++) tile[e * W + l] = value(from[l] + e);
      }
      break;
    }
    const int64_t e = least(next, elements - W);  // the last W may begin before the end of those before
    F columns[W];
    transpose_rows<T>([&](int l) { return from[l] + e; }, columns);
    for (int l = 0; l < W; l++) __builtin_prefetch(from[l] + ahead + e);  // for the next call
    for (int k = 0; k < W; k++) store(tile + (e + k) * W, columns[k]);
  }
}

// Held to the range of T, as a tile of floats is not.
template <class T>
void scatter_tile(const float* tile, const Map& map, int64_t plane, int count, T* x) {
  T* to[W];
  planes_at(x, map, plane, count, to);
  if (!map.dense_planes()) {
    each_element(map, [&](int64_t e, int64_t offset) {
      T lanes[W];
      store(lanes, clamp<T>(load(tile + e * W)));
      for (int l = 0; l < count; l++) to[l][offset] = lanes[l];
    });
    return;
  }
  const int64_t elements = map.elements();
  F rows[W] = {};
  if (elements < W) {
    for (int64_t k = 0; k < elements; k++) rows[k] = clamp<T>(load(tile + k * W));
    transpose(rows);
    for (int l = 0; l < count; l++) store_some(to[l], rows[l], int(elements));
    return;
  }
  for (int64_t next = 0; next < elements; next += W) {
    const int64_t e = least(next, elements - W);
    for (int k = 0; k < W; k++) rows[k] = clamp<T>(load(tile + (e + k) * W));
    transpose(rows);
    for (int l = 0; l < count; l++) store(to[l] + e, rows[l]);
  }
}

}  // namespace DIVISION_ISA
}  // namespace division
