// The service's limits for a message without its body.

import { Refused } from './refused.mjs';

const MOST_OF_ONE = 32 << 10; // of a single application property
const MOST_OF_ALL = 64 << 10; // of the whole message without its body

// checkSizes throws if a message's properties are too large. Small messages, the most, are not decoded for it.
export function checkSizes(message) {
  const all = (message.properties?.length ?? 0) + (message.application?.length ?? 0);
  if (all > MOST_OF_ALL) {
    throw new Refused(400, 'amqp:not-allowed', `The size of the message's headers and properties, ${all} bytes, exceeds the limit of ${MOST_OF_ALL} bytes.`);
  }
  if (all <= MOST_OF_ONE) return;
  for (const [key, typed] of message.applicationProperties()) {
    const size = Buffer.byteLength(String(typed.value ?? ''));
    if (size > MOST_OF_ONE) {
      throw new Refused(400, 'amqp:not-allowed', `The size of property '${key}', ${size} bytes, exceeds the limit of ${MOST_OF_ONE} bytes.`);
    }
  }
}
