// A link on which a client receives, by peek-lock or with immediate removal.

import { ACCEPTED, answer, rejected, typedMap, types } from './amqp.mjs';
import { assemble } from './head.mjs';
import { echo, refuse } from './peer.mjs';
import { Refused } from './refused.mjs';
import { deliveryTag, newToken, tokenKey } from './token.mjs';

const SESSION_FILTER = 'com.microsoft:session-filter';
const SESSION_FILTER_CODE = 0x137000000c;
const SETTLED = 1; // of snd-settle-mode
const TICKS_AT_1970 = 621355968000000000n;
const LONGEST_WAIT = 60_000; // for a session, when the client does not say

export class Consumer {
  waits = false; // for a session; until then the attach is not answered
  session = undefined;
  #sent = 0;
  #timer;

  constructor(peer, link, queue) {
    this.peer = peer;
    this.link = link;
    this.queue = queue;
    if (!queue.pump) throw new Refused(400, 'amqp:not-allowed', `'${queue.path}' is a topic: receive from a subscription.`);
    if (['Disabled', 'ReceiveDisabled'].includes(queue.settings.status)) throw Refused.disabled(queue.path);
    this.deletes = link.snd_settle_mode === SETTLED;
    const filter = link.source.filter?.[SESSION_FILTER];
    if (queue.sessions && filter === undefined) {
      throw new Refused(400, 'amqp:not-allowed', `It is not possible for an entity that requires sessions to create a non-sessionful message receiver: '${queue.path}'.`);
    }
    if (!queue.sessions && filter !== undefined) {
      throw new Refused(400, 'amqp:not-allowed', `A sessionful message receiver cannot be created on an entity that does not require sessions: '${queue.path}'.`);
    }
    if (queue.sessions) this.#awaitSession(types.unwrap(filter?.value ?? filter));
    else queue.add(this);
  }

  // --- sessions

  #awaitSession(id) {
    this.waits = true;
    hold(this.link);
    this.queue.links.add(this);
    const wait = this.link.remote.attach.properties?.['com.microsoft:timeout'] ?? LONGEST_WAIT;
    this.#timer = setTimeout(() => this.#refuse(new Refused(408, 'com.microsoft:timeout', 'The operation did not complete within the allotted timeout.')), wait);
    try {
      this.queue.sessions.acquire(this, id ?? undefined);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      clearTimeout(this.#timer);
      this.queue.links.delete(this);
      release(this.link);
      throw error;
    }
  }

  acquired(session) {
    clearTimeout(this.#timer);
    this.session = session;
    this.waits = false;
    const { link } = this;
    echo(link);
    const { source } = link.remote.attach;
    source.filter = { [SESSION_FILTER]: types.wrap_described(session.id, SESSION_FILTER_CODE) };
    link.local.attach.source = source.described();
    link.local.attach.properties = { 'com.microsoft:locked-until-utc': ticks(session.lockedUntil) };
    release(link);
  }

  // lost is called when the session's lock has expired.
  lost({ condition, message }) {
    this.session = undefined;
    this.detach(condition, message);
  }

  #refuse(error) {
    this.queue.sessions.forget(this);
    this.waits = false;
    release(this.link);
    refuse(this.link, error);
  }

  // --- messages out

  // hungry reports whether there is credit for another message.
  hungry() {
    return this.link.credit > this.#sent - this.link.delivery_count && !this.peer.namespace.faults.silent && !this.peer.socket.destroyed;
  }

  flowed() {
    if (this.session) this.session.pump();
    else if (!this.waits && !this.queue.sessions) this.queue.pump();
  }

  // drained is called before the rest of the credit is returned.
  drained() { this.#sent = this.link.delivery_count + this.link.credit; }

  deliver(message, lock) {
    this.#sent++;
    this.peer.namespace.counts.deliveries++;
    const token = lock?.token ?? newToken();
    const delivery = this.link.send(assemble(message, lock), deliveryTag(token), 0);
    delivery.key = tokenKey(token);
  }

  // --- settling

  settled(delivery) {
    if (delivery.settled) return;
    const { namespace } = this.peer;
    namespace.counts.settles++;
    try {
      if (namespace.faults.refuseLocks) throw Refused.lockLost();
      this.#settle(delivery.key, delivery.remote_state);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      answer(delivery, rejected(error.condition, error.message));
      return;
    }
    if (!this.peer.cut()) answer(delivery, ACCEPTED);
  }

  #settle(key, outcome) {
    const { queue } = this;
    switch (outcome.constructor.composite_type) {
      case 'accepted': return queue.complete(key);
      case 'released': return queue.release(key);
      case 'modified': {
        const changes = typedMap(outcome.value[2]);
        return outcome.undeliverable_here ? queue.defer(key, changes) : queue.abandon(key, changes);
      }
      default: return this.#deadLetter(key, outcome.value[0]);
    }
  }

  #deadLetter(key, error) {
    const info = new Map(typedMap(error?.value?.[2], this.peer.namespace.faults.symbolsOnly ? types.is_symbol : undefined));
    const reason = info.get('DeadLetterReason')?.value;
    const description = info.get('DeadLetterErrorDescription')?.value;
    info.delete('DeadLetterReason');
    info.delete('DeadLetterErrorDescription');
    this.queue.deadLetter(key, reason, description ?? error?.value?.[1]?.value ?? undefined, [...info]);
  }

  // --- the end

  detach(condition, description) {
    if (this.waits) this.#refuse({ condition, message: description });
    else this.peer.detach(this.link, condition, description);
  }

  // closed is called after the end of the link. The messages of its session return to the queue; those that it locked
  // follow the namespace's rule.
  closed() {
    clearTimeout(this.#timer);
    this.queue.remove(this);
    this.queue.unlink(this);
    if (this.waits) {
      this.waits = false;
      this.queue.sessions.forget(this);
      release(this.link);
    }
    this.session?.unlock();
    this.session = undefined;
  }
}

// hold prevents the library's answer to an attach, which follows at the end of this turn of the event loop.
function hold(link) {
  link.state.local_open = false;
  link.state.open_requests = 0;
}

function release(link) {
  if (!link.session.connection.socket.destroyed) link.open();
}

// ticks is a time in .NET's ticks, a number over JavaScript's exact integers.
function ticks(milliseconds) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64BE(BigInt(Math.trunc(milliseconds)) * 10000n + TICKS_AT_1970);
  return types.wrap_long(bytes);
}
