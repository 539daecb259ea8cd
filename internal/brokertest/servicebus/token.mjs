// Lock tokens: sixteen random bytes, which travel in two orders.

import { randomFillSync } from 'node:crypto';

const pool = Buffer.alloc(16 * 512);
let used = pool.length;

// newToken returns a token in the order of RFC 4122, which $management uses.
export function newToken() {
  if (used === pool.length) {
    randomFillSync(pool);
    used = 0;
  }
  const token = Buffer.from(pool.subarray(used, used + 16));
  used += 16;
  token[6] = (token[6] & 0x0f) | 0x40;
  token[8] = (token[8] & 0x3f) | 0x80;
  return token;
}

export function tokenKey(token) { return token.latin1Slice(0, 16); }

// deliveryTag returns the token in the order of a .NET GUID.
export function deliveryTag(token) {
  const tag = Buffer.from(token);
  tag[0] = token[3]; tag[1] = token[2]; tag[2] = token[1]; tag[3] = token[0];
  tag[4] = token[5]; tag[5] = token[4];
  tag[6] = token[7]; tag[7] = token[6];
  return tag;
}
