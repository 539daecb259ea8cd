// The message sessions of a queue: each is delivered as a whole and in order to the consumer with its lock.

import { Ready } from './ready.mjs';
import { Refused } from './refused.mjs';

export class Sessions {
  #all = new Map();
  #free = new Set(); // with ready messages and without lock, in the order in which they became so
  #waiting = new Set(); // consumers that want any session

  constructor(queue) {
    this.queue = queue;
  }

  of(id) {
    let session = this.#all.get(id);
    if (!session) {
      session = new Session(this, id);
      this.#all.set(id, session);
    }
    return session;
  }

  // acquire locks a session for a consumer: the one that it names, or the next free one. A consumer that names none waits
  // until consumer.acquired(session) is called.
  acquire(consumer, id) {
    if (id !== undefined && id !== null) {
      const session = this.of(id);
      if (session.locked) {
        throw new Refused(409, 'com.microsoft:session-cannot-be-locked', `The requested session '${id}' cannot be accepted. It may be locked by another receiver.`);
      }
      return session.lockFor(consumer);
    }
    const [session] = this.#free;
    if (session) return session.lockFor(consumer);
    this.#waiting.add(consumer);
  }

  // forget ends a consumer's wait.
  forget(consumer) { this.#waiting.delete(consumer); }

  changed(session) {
    const free = !session.locked && session.ready.first() !== undefined;
    if (!free) {
      this.#free.delete(session);
      if (!session.locked && session.idle) this.#all.delete(session.id);
      return;
    }
    const [consumer] = this.#waiting;
    if (consumer) {
      this.#waiting.delete(consumer);
      session.lockFor(consumer);
    } else {
      this.#free.add(session);
    }
  }

  lose() {
    for (const session of [...this.#all.values()]) if (session.locked) session.expire();
  }

  // names lists the sessions with messages or a state.
  names() { return [...this.#all.values()].filter((session) => !session.idle).map((session) => session.id); }

  close() {
    for (const session of this.#all.values()) this.queue.namespace.deadlines.clear(session);
  }
}

class Session {
  ready = new Ready();
  delivered = new Set();
  state = null; // the user's own
  lockedUntil = undefined;
  consumer = undefined;
  place = undefined;
  due = undefined;
  #freeing = false;

  constructor(sessions, id) {
    this.sessions = sessions;
    this.id = id;
  }

  get queue() { return this.sessions.queue; }

  get locked() { return this.consumer !== undefined; }

  get idle() { return this.delivered.size === 0 && this.ready.first() === undefined && this.state === null; }

  lockFor(consumer) {
    this.consumer = consumer;
    this.sessions.changed(this);
    this.renew();
    consumer.acquired(this);
    this.pump();
  }

  renew(now = Date.now()) {
    this.lockedUntil = now + this.queue.settings.lockDuration;
    this.queue.namespace.deadlines.set(this, this.lockedUntil);
    return this.lockedUntil;
  }

  // filled is called when a message became ready.
  filled() {
    if (this.locked) this.pump();
    else if (!this.#freeing) this.sessions.changed(this);
  }

  // emptied is called when a message was removed.
  emptied() {
    if (!this.locked && !this.#freeing) this.sessions.changed(this);
  }

  pump() {
    while (this.consumer?.hungry() && this.ready.first()) this.queue.deliver(this.ready.take(), this.consumer);
  }

  // expire is called when the lock has expired.
  expire() {
    const { consumer } = this;
    this.#free(true);
    consumer.lost(Refused.sessionLockLost());
  }

  // unlock is called when the consumer with the lock ends. Its messages do not count as delivered.
  unlock() { this.#free(false); }

  #free(counts) {
    this.queue.namespace.deadlines.clear(this);
    this.lockedUntil = 0;
    this.consumer = undefined;
    this.#freeing = true;
    for (const message of [...this.delivered]) this.queue.requeue(message, counts);
    this.#freeing = false;
    this.sessions.changed(this);
  }
}
