// A queue, a subscription, or a sub-queue of either: messages are numbered, delivered under locks, and settled.

import { Entrance } from './entrance.mjs';
import { Log } from './log.mjs';
import { PartitionedLog } from './partition.mjs';
import { DEFERRED, GONE, LOCKED, READY, SCHEDULED } from './message.mjs';
import { Ready } from './ready.mjs';
import { Refused } from './refused.mjs';
import { COUNTED, OUTLIVE } from './rules.mjs';
import { Sessions } from './sessions.mjs';
import { types } from './amqp.mjs';
import { newToken, tokenKey } from './token.mjs';

export class Queue extends Entrance {
  #ready = new Ready();
  #locks = new Map(); // by key of the token
  #consumers = [];
  #turn = 0;
  #pumping = false;

  constructor(namespace, path, settings, parent) {
    super(namespace, path, settings);
    this.log = settings.enablePartitioning ? new PartitionedLog() : new Log();
    this.parent = parent; // the queue of a sub-queue
    this.sessions = settings.requiresSession && !parent ? new Sessions(this) : undefined;
    if (!parent) {
      this.deadLetters = new Queue(namespace, `${path}/$DeadLetterQueue`, settings, this);
      this.transferDeadLetters = new Queue(namespace, `${path}/$Transfer/$DeadLetterQueue`, settings, this);
    }
  }

  checkMessage(message) {
    if (this.parent) throw new Refused(403, 'amqp:not-allowed', 'A sub-queue cannot be sent to.');
    if (this.sessions && message.sessionId === undefined) {
      throw new Refused(400, 'amqp:not-allowed', `The SessionId was not set on a message, and it cannot be sent to the entity '${this.path}', which requires sessions.`);
    }
  }

  // --- messages in

  arrive(message, now) {
    const { forwardTo } = this.settings;
    if (forwardTo && !this.parent) return this.#forward(message, forwardTo, now);
    this.number(message);
    message.queue = this;
    message.enqueuedAt = now;
    message.expiresAt = this.parent ? Infinity : now + Math.min(message.ttl ?? Infinity, this.settings.ttl);
    this.bytes += message.size;
    this.log.add(message);
    if (this.sessions) message.session = this.sessions.of(message.sessionId);
    this.#available(message, (ready) => ready.arrived(message));
  }

  // forwardAll forwards the messages that are older than the setting.
  forwardAll(now) {
    for (const message of [...this.log]) {
      if (message.state !== READY) continue;
      this.removed(message);
      this.#forward(message.copy(), this.settings.forwardTo, now);
    }
  }

  // #forward forwards a message. If that fails it is a dead letter of the transfer.
  #forward(message, target, now) {
    const why = this.namespace.forward(message, target, now);
    if (why) this.fill(this.transferDeadLetters, message, now, why, `The message could not be forwarded to ${target}.`);
  }

  held(message) { this.log.add(message); }
  unheld(message) { this.log.remove(message); }

  // #available makes a message ready to be delivered.
  #available(message, put) {
    message.state = READY;
    put(message.session?.ready ?? this.#ready);
    this.namespace.deadlines.set(message, message.expiresAt);
    if (message.session) message.session.filled();
    else this.pump();
  }

  #return(message) {
    if (message.expiresAt <= Date.now()) return this.#expired(message);
    this.#available(message, (ready) => ready.returned(message));
  }

  // --- messages out

  add(consumer) {
    this.#consumers.push(consumer);
    this.links.add(consumer);
  }

  remove(consumer) {
    const place = this.#consumers.indexOf(consumer);
    if (place >= 0) this.#consumers.splice(place, 1);
    this.links.delete(consumer);
  }

  // pump delivers messages in turn to the consumers with credit.
  pump() {
    if (this.#pumping) return;
    this.#pumping = true;
    try {
      for (let consumer; (consumer = this.#next()) && this.#ready.first();) this.deliver(this.#ready.take(), consumer);
    } finally {
      this.#pumping = false;
    }
  }

  #next() {
    for (let tried = 0; tried < this.#consumers.length; tried++) {
      const consumer = this.#consumers[this.#turn++ % this.#consumers.length];
      if (consumer.hungry()) return consumer;
    }
    return undefined;
  }

  deliver(message, consumer) {
    this.accessedAt = Date.now();
    if (consumer.deletes) {
      consumer.deliver(message, undefined);
      this.removed(message);
      return;
    }
    message.holder = consumer;
    consumer.deliver(message, this.lock(message));
  }

  // lock locks a message and returns the token and end of the lock.
  lock(message, now = Date.now()) {
    message.state = LOCKED;
    message.token = newToken();
    message.key = tokenKey(message.token);
    message.lockedUntil = now + this.settings.lockDuration;
    this.#locks.set(message.key, message);
    if (message.session) {
      this.namespace.deadlines.clear(message);
      message.session.delivered.add(message);
    } else {
      this.namespace.deadlines.set(message, message.lockedUntil);
    }
    return { token: message.token, until: message.session?.lockedUntil ?? message.lockedUntil };
  }

  // held returns the message of a lock that has not expired, or undefined.
  locked(key, now = Date.now()) {
    const message = this.#locks.get(key);
    if (!message) return undefined;
    const until = message.session ? message.session.lockedUntil : message.lockedUntil;
    return until > now ? message : undefined;
  }

  get lockedCount() { return this.#locks.size; }

  // --- settling. Each throws when the lock is lost.

  #take(key) {
    const message = this.locked(key);
    if (!message) throw Refused.lockLost();
    this.#unlock(message);
    return message;
  }

  #unlock(message) {
    this.#locks.delete(message.key);
    message.session?.delivered.delete(message);
    this.namespace.deadlines.clear(message);
    message.token = message.key = message.lockedUntil = message.holder = undefined;
  }

  complete(key) { this.removed(this.#take(key)); }

  abandon(key, changes) {
    const message = this.#take(key);
    message.modify(changes);
    this.failed(message);
  }

  release(key) {
    const message = this.#take(key);
    if (message.deferred) this.#park(message);
    else this.#return(message);
  }

  defer(key, changes) {
    const message = this.#take(key);
    message.modify(changes);
    this.#park(message);
  }

  #park(message) {
    message.state = DEFERRED;
    this.namespace.deadlines.set(message, message.expiresAt);
  }

  deadLetter(key, reason, description, changes) {
    if (this.parent) throw new Refused(400, 'amqp:not-allowed', `Cannot dead-letter a message of '${this.path}', which is a dead-letter queue.`);
    const message = this.#take(key);
    message.modify(changes);
    this.bury(message, reason, description);
  }

  renew(key, now = Date.now()) {
    const message = this.locked(key, now);
    if (!message || message.session) throw Refused.lockLost();
    message.lockedUntil = now + this.settings.lockDuration;
    this.namespace.deadlines.set(message, message.lockedUntil);
    return message.lockedUntil;
  }

  // failed counts a delivery that was not completed. Those of dead letters are not counted.
  failed(message) {
    if (!this.parent) message.deliveryCount++;
    const most = this.settings.maxDeliveryCount;
    if (!this.parent && message.deliveryCount >= most) {
      this.bury(message, 'MaxDeliveryCountExceeded', `Message could not be consumed after ${most} delivery attempts.`);
    } else if (message.deferred) {
      this.#park(message);
    } else {
      this.#return(message);
    }
  }

  // unlink is called after the end of a link. Its locks outlive it, unless the namespace has another rule.
  unlink(consumer) {
    const { locksOfEndedLinks: rule } = this.namespace.rules;
    if (rule === OUTLIVE || consumer.session) return;
    for (const message of [...this.#locks.values()]) if (message.holder === consumer) this.requeue(message, rule === COUNTED);
  }

  // lose ends the locks of all messages in flight, as if they had expired.
  lose() {
    this.sessions?.lose();
    for (const message of [...this.#locks.values()]) {
      this.#unlock(message);
      this.failed(message);
    }
  }

  // requeue returns a message whose lock has ended with the session or the link.
  requeue(message, counts) {
    this.#unlock(message);
    if (counts) this.failed(message);
    else if (message.deferred) this.#park(message);
    else this.#return(message);
  }

  // --- deadlines of messages

  expire(message, now) {
    if (message.state === SCHEDULED) return super.expire(message, now);
    if (message.state === LOCKED) {
      this.#unlock(message);
      return this.failed(message);
    }
    this.#expired(message);
  }

  #expired(message) {
    if (this.settings.deadLetteringOnMessageExpiration) {
      this.bury(message, 'TTLExpiredException', 'The message expired and was dead lettered.');
    } else {
      this.removed(message);
    }
  }

  // --- messages away

  removed(message) {
    if (message.state === GONE) return;
    message.state = GONE;
    message.session?.emptied();
    this.bytes -= message.size;
    this.namespace.deadlines.clear(message);
    this.log.remove(message);
  }

  // bury makes a message a dead letter.
  bury(message, reason, description) {
    const why = [];
    if (reason !== undefined) why.push(['DeadLetterReason', types.wrap_string(String(reason))]);
    if (description !== undefined) why.push(['DeadLetterErrorDescription', types.wrap_string(String(description))]);
    message.modify(why);
    this.removed(message);
    const letter = message.copy();
    letter.deadLetterSource = this.path;
    const { forwardDeadLetteredMessagesTo: target } = this.settings;
    const now = Date.now();
    const failure = target && this.namespace.forward(letter, target, now);
    if (!target) {
      letter.deliveryCount = message.deliveryCount;
      this.deadLetters.arrive(letter, now);
    } else if (failure) {
      this.fill(this.transferDeadLetters, letter, now, failure, `The message could not be forwarded to ${target}.`);
    }
  }

  // fill adds a message to a queue of dead letters.
  fill(queue, message, now, reason, description) {
    message.modify([['DeadLetterReason', types.wrap_string(reason)], ['DeadLetterErrorDescription', types.wrap_string(description)]]);
    queue.arrive(message, now);
  }

  // --- messages by number

  // deferredOnes locks deferred messages, or removes them if deletes is set. It throws unless all exist.
  deferredOnes(sequences, deletes, sessionId) {
    const messages = sequences.map((sequence) => this.log.get(Number(sequence)));
    const fits = (message) => message?.state === DEFERRED && (sessionId === undefined || message.sessionId === sessionId);
    if (!messages.every(fits)) {
      throw new Refused(404, 'com.microsoft:message-not-found', 'Failed to lock one or more specified messages. The message does not exist.');
    }
    return messages.map((message) => {
      const lock = deletes ? undefined : this.lock(message);
      message.deferred = !deletes;
      if (deletes) this.removed(message);
      return { message, lock };
    });
  }

  // peek lists messages from a sequence number on, of one session or of all. A partitioned entity shows one, of any
  // partition: https://github.com/Azure/azure-service-bus-dotnet/issues/586.
  peek(from, count, sessionId) {
    const found = [];
    for (const message of this.log.seen(from)) {
      if (found.length >= count) break;
      if (sessionId === undefined || message.sessionId === sessionId) found.push(message);
    }
    return found;
  }

  get counts() {
    return {
      active: this.log.size - this.scheduled.size,
      scheduled: this.scheduled.size,
      deadLetters: this.deadLetters?.log.size ?? 0,
      transferDeadLetters: this.transferDeadLetters?.log.size ?? 0,
    };
  }

  close() {
    for (const message of [...this.log]) this.removed(message);
    super.close();
    this.sessions?.close();
    this.deadLetters?.close();
    this.transferDeadLetters?.close();
  }
}
