// A message as the broker keeps it: the bytes that came, and what the broker has to say about it.

import { encodeTyped, typedMap, types } from './amqp.mjs';
import { OWN } from './head.mjs';
import { APPLICATION_PROPERTIES, decode, parts } from './sections.mjs';

// The states of a message. wire is what x-opt-message-state says.
export const READY = { name: 'active', wire: 0 };
export const LOCKED = { name: 'locked', wire: 0 };
export const DEFERRED = { name: 'deferred', wire: 1 };
export const SCHEDULED = { name: 'scheduled', wire: 2 };
export const GONE = { name: 'gone', wire: 0 };

const FIELDS = ['messageId', 'userId', 'to', 'subject', 'replyTo', 'correlationId', 'contentType', 'contentEncoding',
  'absoluteExpiryTime', 'creationTime', 'groupId', 'groupSequence', 'replyToGroupId'];

export class Message {
  state = READY;
  queue = undefined; // where it is
  session = undefined;
  token = undefined; // of its lock: 16 bytes
  holder = undefined; // the consumer whose link the lock was made on
  key = undefined; // the same as a string
  lockedUntil = undefined;
  deferred = false; // it is locked, and was parked before
  place = undefined; // among the deadlines
  due = undefined;

  durable = false;
  priority = 4;
  ttl = undefined; // milliseconds
  deliveryCount = 0; // of deliveries that failed
  sequence = 0;
  partition = undefined; // of a partitioned entity
  order = 0; // of arrival in its queue
  enqueueSequence = 0; // the first sequence number that it had
  enqueuedAt = 0;
  expiresAt = Infinity;
  scheduledAt = undefined;
  deadLetterSource = undefined;
  partitionKey = undefined;
  hops = 0; // of forwarding
  annotations = [];
  properties = null;
  application = null;
  body = null;
  size = 0;
  #fields;
  #values;

  // read makes a message of what a sender sent. The bytes are copied, so that they hold no larger buffer.
  static read(bytes) {
    const message = new Message();
    const found = parts(Buffer.from(bytes));
    message.properties = found.properties;
    message.application = found.application;
    message.body = found.body;
    message.size = bytes.length;
    if (found.header) message.#readHeader(found.header);
    for (const [key, value] of found.annotations) message.#readAnnotation(String(key), value);
    return message;
  }

  #readHeader([durable, priority, ttl]) {
    this.durable = durable?.value === true;
    this.priority = priority?.value ?? 4;
    this.ttl = ttl?.value ?? undefined;
  }

  #readAnnotation(key, typed) {
    if (key === 'x-opt-scheduled-enqueue-time') this.scheduledAt = Number(types.unwrap(typed) ?? NaN) || undefined;
    else if (key === 'x-opt-partition-key') this.partitionKey = typed.value ?? undefined;
    else if (!OWN.has(key)) this.annotations.push([key, typed]);
  }

  // expire is called when the deadline of its state has come.
  expire(now) { this.queue.expire(this, now); }

  // copy is the same message for another queue.
  copy() {
    const other = new Message();
    for (const field of ['durable', 'priority', 'ttl', 'scheduledAt', 'partitionKey', 'hops', 'annotations', 'properties',
      'application', 'body', 'size', 'deadLetterSource', 'enqueueSequence', 'partition']) other[field] = this[field];
    return other;
  }

  // field is a value of the properties section, as the type that it was sent as.
  field(name) {
    this.#fields ??= this.properties ? decode(this.properties).value : [];
    return this.#fields[FIELDS.indexOf(name)]?.value ?? undefined;
  }

  get sessionId() { return this.field('groupId'); }

  // id is the message id as text, or undefined.
  get id() {
    const id = this.field('messageId');
    if (id === undefined) return undefined;
    return Buffer.isBuffer(id) ? id.toString('hex') : String(id);
  }

  // value is an application property, undefined when it is not there.
  value(name) {
    this.#values ??= new Map(this.applicationProperties().map(([key, typed]) => [key, types.unwrap(typed)]));
    return this.#values.get(name);
  }

  applicationProperties() { return this.application ? typedMap(decode(this.application)) : []; }

  // modify sets application properties; a value undefined takes one away.
  modify(changes) {
    if (changes.length === 0) return;
    const all = new Map(this.applicationProperties());
    for (const [key, value] of changes) {
      if (value === undefined) all.delete(String(key));
      else all.set(String(key), value);
    }
    const flat = [];
    for (const [key, value] of all) flat.push(types.wrap_string(key), value);
    const section = types.described_nc(types.wrap_ulong(APPLICATION_PROPERTIES), types.Map32(flat));
    this.application = flat.length > 0 ? encodeTyped(section) : null;
    this.#values = undefined;
  }
}
