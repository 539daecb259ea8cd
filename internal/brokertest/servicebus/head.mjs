// The sections that the broker itself writes before a message: header, delivery annotations, message annotations.

import { encodeTyped, types } from './amqp.mjs';

let scratch = Buffer.allocUnsafe(4096);
let at = 0;

const KEYS = {};
for (const key of ['x-opt-sequence-number', 'x-opt-enqueued-time', 'x-opt-locked-until', 'x-opt-enqueue-sequence-number',
  'x-opt-message-state', 'x-opt-deadletter-source', 'x-opt-scheduled-enqueue-time', 'x-opt-partition-key']) {
  KEYS[key] = Buffer.concat([Buffer.from([0xa3, key.length]), Buffer.from(key, 'ascii')]);
}
const LOCK_TOKEN = Buffer.concat([
  Buffer.from([0x00, 0x53, 0x71, 0xc1, 1 + 2 + 16 + 1 + 16, 2, 0xa3, 16]), Buffer.from('x-opt-lock-token', 'ascii'), Buffer.from([0x98]),
]);

// OWN are the annotations that the broker sets, whatever the sender's are.
export const OWN = new Set(Object.keys(KEYS));

// assemble returns the bytes of a delivery. The lock is {token, until} or undefined; tokenInside is for messages without a
// delivery tag.
export function assemble(message, lock, tokenInside) {
  at = 0;
  writeHeader(message);
  if (tokenInside) {
    copy(LOCK_TOKEN);
    copy(lock.token);
  }
  writeAnnotations(message, lock);
  const { properties, application, body } = message;
  const size = at + (properties?.length ?? 0) + (application?.length ?? 0) + body.length;
  const whole = Buffer.allocUnsafe(size);
  let end = scratch.copy(whole, 0, 0, at);
  if (properties) end += properties.copy(whole, end);
  if (application) end += application.copy(whole, end);
  body.copy(whole, end);
  return whole;
}

function writeHeader(message) {
  copy(HEADER_START);
  const size = at;
  at += 2;
  byte(message.durable ? 0x41 : 0x42);
  byte(0x50);
  byte(message.priority);
  if (message.ttl === undefined) byte(0x40);
  else uint(message.ttl);
  byte(0x42);
  uint(message.deliveryCount);
  scratch[size] = at - size - 1;
  scratch[size + 1] = 5;
}

const HEADER_START = Buffer.from([0x00, 0x53, 0x70, 0xc0]);
const ANNOTATIONS_START = Buffer.from([0x00, 0x53, 0x72, 0xd1]);

function writeAnnotations(message, lock) {
  copy(ANNOTATIONS_START);
  const size = at;
  at += 8;
  let pairs = 4;
  long('x-opt-sequence-number', message.sequence);
  long('x-opt-enqueue-sequence-number', message.enqueueSequence);
  timestamp('x-opt-enqueued-time', message.enqueuedAt);
  copy(KEYS['x-opt-message-state']);
  byte(0x71);
  at = scratch.writeInt32BE(message.state.wire, at);
  if (lock) { timestamp('x-opt-locked-until', lock.until); pairs++; }
  if (message.scheduledAt !== undefined) { timestamp('x-opt-scheduled-enqueue-time', message.scheduledAt); pairs++; }
  if (message.deadLetterSource) { string('x-opt-deadletter-source', message.deadLetterSource); pairs++; }
  if (message.partitionKey !== undefined) { string('x-opt-partition-key', message.partitionKey); pairs++; }
  for (const [key, value] of message.annotations) {
    copy(encodeTyped(types.wrap_symbol(String(key))));
    copy(encodeTyped(value));
    pairs++;
  }
  scratch.writeUInt32BE(at - size - 4, size);
  scratch.writeUInt32BE(pairs * 2, size + 4);
}

function room(n) {
  if (at + n <= scratch.length) return;
  const larger = Buffer.allocUnsafe(Math.max(scratch.length * 2, at + n));
  scratch.copy(larger, 0, 0, at);
  scratch = larger;
}

function copy(bytes) {
  room(bytes.length + 64);
  bytes.copy(scratch, at);
  at += bytes.length;
}

function byte(value) { scratch[at++] = value; }

function uint(value) {
  byte(0x70);
  at = scratch.writeUInt32BE(value, at);
}

function eight(value) {
  scratch.writeInt32BE(Math.floor(value / 0x100000000), at);
  scratch.writeUInt32BE(value % 0x100000000, at + 4);
  at += 8;
}

function long(key, value) {
  copy(KEYS[key]);
  byte(0x81);
  eight(value);
}

function timestamp(key, value) {
  copy(KEYS[key]);
  byte(0x83);
  eight(value);
}

function string(key, value) {
  copy(KEYS[key]);
  copy(encodeTyped(types.wrap_string(value)));
}
