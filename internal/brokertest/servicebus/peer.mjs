// A client's connection: the tokens that it has presented, and its links.

import { answer, rejected } from './amqp.mjs';
import { Cbs } from './cbs.mjs';
import { Consumer } from './consumer.mjs';
import { LISTEN, SEND } from './keys.mjs';
import { Management } from './management.mjs';
import { Producer } from './producer.mjs';
import { Refused } from './refused.mjs';

const MANAGEMENT = /\/\$management$/i;

export class Peer {
  links = new Set();
  replies = new Map(); // links by the address that answers are sent to
  #rights = new Map(); // by lower-case entity path

  constructor(namespace, connection, socket) {
    this.namespace = namespace;
    this.connection = connection;
    this.socket = socket;
  }

  // authorize records the rights of a token for an address.
  authorize(path, rights) { this.#rights.set(key(path), rights); }

  #need(path, ...any) {
    const rights = this.#rights.get(key(path));
    if (!rights) throw Refused.unauthorized(`Unauthorized access. There is no token for '${path}' on this connection.`);
    if (any.some((right) => rights.has(right))) return;
    throw Refused.unauthorized(`Unauthorized access. '${any.join("' or '")}' claim(s) are required to perform this operation on '${path}'.`);
  }

  // senderOpened is called when the client attaches to receive.
  senderOpened({ sender: link }) {
    const path = link.source?.address ?? '';
    this.#open(link, () => {
      settleModes(link);
      if (path.toLowerCase() === '$cbs') return this.#replyLink(link);
      if (MANAGEMENT.test(path)) {
        this.#need(path, LISTEN, SEND);
        return this.#replyLink(link);
      }
      this.#need(path, LISTEN);
      this.#check(path);
      return new Consumer(this, link, this.namespace.find(path));
    });
  }

  // receiverOpened is called when the client attaches to send.
  receiverOpened({ receiver: link }) {
    const path = link.target?.address ?? '';
    this.#open(link, () => {
      settleModes(link);
      if (path.toLowerCase() === '$cbs') return new Cbs(this, link);
      if (MANAGEMENT.test(path)) {
        this.#need(path, LISTEN, SEND);
        this.namespace.faults.links.check(path, 'attach');
        return new Management(this, link, this.namespace.find(path.replace(MANAGEMENT, '')));
      }
      this.#need(path, SEND);
      this.#check(path);
      return new Producer(this, link, this.namespace.find(path));
    });
  }

  // #open creates the handler of a link, and echoes the link. A refused link has neither source nor target, and no credit.
  #open(link, make) {
    try {
      link.behind = make();
      this.links.add(link);
      if (!link.behind.waits) echo(link);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      refuse(link, error);
    }
  }

  #check(path) {
    if (this.namespace.faults.busy()) throw Refused.throttled();
    this.namespace.faults.links.check(path, 'attach');
  }

  #replyLink(link) {
    const address = link.target?.address;
    this.replies.set(address, link);
    return { closed: () => this.replies.delete(address) };
  }

  // reply sends an encoded message to an address of the client.
  reply(address, bytes) {
    const link = this.replies.get(address);
    if (link && !this.socket.destroyed) link.send(bytes, undefined, 0);
  }

  flowed({ sender: link }) { link.behind?.flowed?.(); }

  // draining is called when the client wants its credit used or returned now, as Microsoft's client does before it closes.
  draining({ sender: link }) {
    link.behind?.drained?.();
    link.set_drained(true);
    this.connection._register();
  }

  received({ receiver: link, message, delivery, format }) {
    this.#later(() => link.behind?.received(message, delivery, format ?? 0));
  }

  settled({ delivery }) {
    const { link } = delivery;
    this.#later(() => link.behind?.settled?.(delivery));
  }

  // #later handles a client's request after the test's delay. An error ends the connection, not the broker.
  #later(what) {
    this.namespace.faults.later(() => {
      try {
        what();
      } catch (error) {
        console.error('bad request:', error.stack);
        this.drop();
      }
    });
  }

  linkClosed({ sender, receiver }) { this.#ended(sender ?? receiver); }

  sessionClosed({ session }) {
    for (const link of [...this.links]) if (link.session === session) this.#ended(link);
  }

  #ended(link) {
    this.links.delete(link);
    const { behind } = link;
    link.behind = undefined;
    behind?.closed?.();
  }

  // detach ends a link with an error.
  detach(link, condition, description) {
    this.#ended(link);
    if (!this.socket.destroyed) link.close({ condition, description });
  }

  // cut ends the connection instead of an answer, if the test has set that.
  cut() {
    if (!this.namespace.faults.cut()) return false;
    this.drop();
    return true;
  }

  drop() {
    this.socket.resetAndDestroy();
    this.connection.eof(); // stops the library's timers
  }

  closed() {
    for (const link of [...this.links]) this.#ended(link);
  }
}

// key returns a path without its leading slash: an address may have one, and its token another form.
function key(path) { return path.toLowerCase().replace(/^\/+/, ''); }

// settleModes answers with the client's own settle modes. A client takes another answer for the mode of the link.
function settleModes(link) {
  link.local.attach.snd_settle_mode = link.snd_settle_mode;
  link.local.attach.rcv_settle_mode = link.rcv_settle_mode;
}

// echo answers with the client's own attach.
export function echo(link) {
  const { source, target } = link.remote.attach;
  if (source) link.local.attach.source = source.described();
  if (target) link.local.attach.target = target.described();
}

// refuse answers an attach with one that has no terminus, and a detach at once.
export function refuse(link, { condition, message }) {
  link.close({ condition, description: message });
}

// refuseDelivery answers a delivery.
export function refuseDelivery(delivery, error) {
  answer(delivery, rejected(error.condition, error.message));
}
