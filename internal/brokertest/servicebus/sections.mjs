// The sections of an encoded message, found without decoding them, and assembled again around the unchanged rest.

import { types, typedMap } from './amqp.mjs';

export const HEADER = 0x70;
export const DELIVERY_ANNOTATIONS = 0x71;
export const MESSAGE_ANNOTATIONS = 0x72;
export const PROPERTIES = 0x73;
export const APPLICATION_PROPERTIES = 0x74;
export const DATA = 0x75;
export const VALUE = 0x77;

// Malformed is thrown for bytes that are no message.
export class Malformed extends Error {}

// sections lists code, start and end of each section, and the start of its value.
export function sections(bytes) {
  const found = [];
  for (let at = 0; at < bytes.length;) {
    const start = at;
    if (bytes[at] !== 0x00) throw new Malformed('a section without descriptor');
    let code;
    if (bytes[at + 1] === 0x53) {
      code = bytes[at + 2];
      at += 3;
    } else if (bytes[at + 1] === 0x80 && at + 10 <= bytes.length) {
      code = bytes.readUInt32BE(at + 6);
      at += 10;
    } else {
      throw new Malformed('a descriptor that is no number');
    }
    const value = at;
    at = skip(bytes, at, 0);
    found.push({ code, start, value, end: at });
  }
  return found;
}

// skip returns the end of the value at a position.
function skip(bytes, at, depth) {
  const code = bytes[at];
  if (code === undefined || depth > 8) throw new Malformed('a value that is cut short');
  if (code === 0x00) return skip(bytes, skip(bytes, at + 1, depth + 1), depth + 1);
  const end = at + 1 + width(bytes, at, code);
  if (!(end <= bytes.length)) throw new Malformed('a value that is cut short');
  return end;
}

const FIXED = [0, 1, 2, 4, 8, 16];

function width(bytes, at, code) {
  const category = code >>> 4;
  if (category >= 0x4 && category <= 0x9) return FIXED[category - 4];
  if (category === 0xa || category === 0xc || category === 0xe) return 1 + bytes[at + 1];
  if (category >= 0xa && at + 5 <= bytes.length) return 4 + bytes.readUInt32BE(at + 1);
  throw new Malformed('an unknown type');
}

// decode returns the typed value of a section.
export function decode(bytes) {
  const reader = new types.Reader(bytes);
  const typed = reader.read();
  return typed;
}

// parts splits a message into the sections that a broker reads and the rest.
export function parts(bytes) {
  const message = { header: null, annotations: [], properties: null, application: null, body: bytes.subarray(bytes.length) };
  for (const section of sections(bytes)) {
    const own = bytes.subarray(section.start, section.end);
    switch (section.code) {
      case HEADER: message.header = decode(own).value; break;
      case DELIVERY_ANNOTATIONS: break;
      case MESSAGE_ANNOTATIONS: message.annotations = typedMap(decode(own)); break;
      case PROPERTIES: message.properties = own; break;
      case APPLICATION_PROPERTIES: message.application = own; break;
      default:
        message.body = bytes.subarray(section.start);
        return message;
    }
  }
  return message;
}

// batch lists the messages in the data sections of a batch.
export function batch(bytes) {
  const messages = [];
  for (const { code, value, end } of sections(bytes)) {
    if (code === DATA) messages.push(binary(bytes.subarray(value, end)));
  }
  return messages;
}

function binary(value) {
  if (value[0] === 0xa0) return value.subarray(2);
  if (value[0] === 0xb0) return value.subarray(5);
  throw new Malformed('data that is not binary');
}
