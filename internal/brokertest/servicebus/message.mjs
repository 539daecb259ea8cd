// A message: the received bytes, and its state at the broker.

import { encodeTyped, typedMap, types } from './amqp.mjs';
import { OWN } from './head.mjs';
import { APPLICATION_PROPERTIES, decode, parts } from './sections.mjs';

// The states of a message. wire is the value of x-opt-message-state.
export const READY = { name: 'active', wire: 0 };
export const LOCKED = { name: 'locked', wire: 0 };
export const DEFERRED = { name: 'deferred', wire: 1 };
export const SCHEDULED = { name: 'scheduled', wire: 2 };
export const GONE = { name: 'gone', wire: 0 };

const FIELDS = ['messageId', 'userId', 'to', 'subject', 'replyTo', 'correlationId', 'contentType', 'contentEncoding',
  'absoluteExpiryTime', 'creationTime', 'groupId', 'groupSequence', 'replyToGroupId'];

export class Message {
  state = READY;
  queue = undefined; // that has it
  session = undefined;
  token = undefined; // of its lock: 16 bytes
  holder = undefined; // the consumer whose link has the lock
  key = undefined; // the token as a string
  lockedUntil = undefined;
  deferred = false; // it is locked, and was deferred before
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

  // read returns the message of a sender. It copies the bytes, which would keep a larger buffer alive.
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

  // expire is called at the deadline of its state.
  expire(now) { this.queue.expire(this, now); }

  // copy returns the message for another queue.
  copy() {
    const other = new Message();
    for (const field of ['durable', 'priority', 'ttl', 'scheduledAt', 'partitionKey', 'hops', 'annotations', 'properties',
      'application', 'body', 'size', 'deadLetterSource', 'enqueueSequence', 'partition']) other[field] = this[field];
    return other;
  }

  // field returns a value of the properties section, with its type.
  field(name) {
    this.#fields ??= this.properties ? decode(this.properties).value : [];
    return this.#fields[FIELDS.indexOf(name)]?.value ?? undefined;
  }

  get sessionId() { return this.field('groupId'); }

  // id returns the message id as text, or undefined.
  get id() {
    const id = this.field('messageId');
    if (id === undefined) return undefined;
    return Buffer.isBuffer(id) ? id.toString('hex') : String(id);
  }

  // value returns an application property, or undefined.
  value(name) {
    this.#values ??= new Map(this.applicationProperties().map(([key, typed]) => [key, types.unwrap(typed)]));
    return this.#values.get(name);
  }

  applicationProperties() { return this.application ? typedMap(decode(this.application)) : []; }

  // modify sets application properties; a value undefined removes one.
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
