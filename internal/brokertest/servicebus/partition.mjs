// Partitioned entities: a message belongs to one of sixteen partitions, the top 16 bits of its sequence number.
// https://learn.microsoft.com/azure/service-bus-messaging/message-sequencing

import { Log } from './log.mjs';

const PARTITIONS = 16;
const SPAN = 2 ** 48; // sequence numbers of a partition; sixteen times that is still exact in JavaScript

// Numbers sets the sequence numbers of an entity.
export class Numbers {
  #last;
  #turn = 0;
  #order = 0;

  constructor(partitioned) {
    this.#last = new Array(partitioned ? PARTITIONS : 1).fill(0);
  }

  set(message) {
    message.order = ++this.#order;
    if (this.#last.length > 1) message.partition ??= this.#partition(message);
    const partition = message.partition ?? 0;
    message.sequence = partition * SPAN + ++this.#last[partition];
  }

  // #partition returns the partition of the message's key, or the next one.
  #partition(message) {
    const key = message.sessionId ?? message.partitionKey;
    if (key === undefined) return this.#turn++ % PARTITIONS;
    let hash = 0;
    for (const byte of Buffer.from(String(key))) hash = (hash * 31 + byte) % PARTITIONS;
    return hash;
  }
}

// PartitionedLog has all messages of a queue, each in the log of its partition.
export class PartitionedLog {
  #logs = Array.from({ length: PARTITIONS }, () => new Log());
  #turn = 0;

  get size() { return this.#logs.reduce((sum, log) => sum + log.size, 0); }

  add(message) { this.#of(message.sequence).add(message); }

  get(sequence) { return this.#of(sequence)?.get(sequence); }

  remove(message) { this.#of(message.sequence).remove(message); }

  #of(sequence) { return this.#logs[Math.floor(sequence / SPAN)]; }

  * from(sequence) {
    for (const log of this.#logs) yield* log.from(sequence);
  }

  // seen yields one message, of the next partition that has any from the sequence number on.
  * seen(sequence) {
    for (let tried = 0; tried < PARTITIONS; tried++) {
      const [message] = this.#logs[this.#turn++ % PARTITIONS].from(sequence);
      if (!message) continue;
      yield message;
      return;
    }
  }

  [Symbol.iterator]() { return this.from(0); }
}
