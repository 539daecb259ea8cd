// The entrance of a queue or a topic: messages are checked, compared with earlier ones, and kept until they are due.

import { GONE, READY, SCHEDULED } from './message.mjs';
import { Numbers } from './partition.mjs';
import { Refused } from './refused.mjs';

const MEGABYTE = 1 << 20;

export class Entrance {
  #seen = new Map(); // message id to the end of its window, oldest first
  scheduled = new Map(); // by sequence number

  constructor(namespace, path, settings) {
    this.namespace = namespace;
    this.path = path;
    this.settings = settings;
    this.createdAt = this.updatedAt = this.accessedAt = Date.now();
    this.links = new Set();
    this.bytes = 0;
    this.numbers = new Numbers(settings.enablePartitioning);
  }

  // number sets the next sequence number of a message.
  number(message) {
    this.numbers.set(message);
    message.enqueueSequence ||= message.sequence;
  }

  // check throws if a message of a group is not valid, before any of them is accepted.
  check(messages) {
    const { status, maxSizeInMegabytes } = this.settings;
    if (status === 'Disabled' || status === 'SendDisabled') throw Refused.disabled(this.path);
    const size = messages.reduce((sum, message) => sum + message.size, 0);
    if (this.bytes + size > maxSizeInMegabytes * MEGABYTE) throw Refused.full(this.path);
    for (const message of messages) this.checkMessage(message);
  }

  checkMessage() {}

  // accept accepts a message. Its sequence number is 0 if it is a duplicate.
  accept(message, now = Date.now()) {
    this.accessedAt = now;
    if (this.#duplicate(message, now)) return 0;
    if (message.scheduledAt > now) this.#hold(message);
    else this.arrive(message, now);
    return message.sequence;
  }

  #duplicate(message, now) {
    if (!this.settings.requiresDuplicateDetection) return false;
    const { id } = message;
    if (id === undefined) return false;
    for (const [old, until] of this.#seen) {
      if (until > now) break;
      this.#seen.delete(old);
    }
    if (this.#seen.has(id)) return true;
    this.#seen.set(id, now + this.settings.duplicateDetectionWindow);
    return false;
  }

  #hold(message) {
    this.number(message);
    message.state = SCHEDULED;
    message.queue = this;
    message.enqueuedAt = message.scheduledAt;
    this.scheduled.set(message.sequence, message);
    this.bytes += message.size;
    this.held(message);
    this.namespace.deadlines.set(message, message.scheduledAt);
  }

  // expire is called when a scheduled message is due.
  expire(message, now) {
    this.unhold(message);
    message.state = READY;
    this.arrive(message, now);
  }

  unhold(message) {
    this.scheduled.delete(message.sequence);
    this.bytes -= message.size;
    this.namespace.deadlines.clear(message);
    this.unheld(message);
  }

  held() {}
  unheld() {}

  // cancel removes scheduled messages, all or none.
  cancel(sequences) {
    const messages = sequences.map((sequence) => this.scheduled.get(Number(sequence)));
    if (messages.includes(undefined)) {
      throw new Refused(404, 'com.microsoft:message-not-found', 'The scheduled message with this sequence number does not exist.');
    }
    for (const message of messages) {
      this.unhold(message);
      message.state = GONE;
    }
  }

  // close is called when the entity is deleted.
  close() {
    for (const message of [...this.scheduled.values()]) this.unhold(message);
    for (const link of [...this.links]) link.detach('amqp:not-found', `The messaging entity '${this.path}' could not be found.`);
  }
}
