// A link on which a client sends.

import { ACCEPTED, answer, types } from './amqp.mjs';
import { checkSizes } from './limits.mjs';
import { Message } from './message.mjs';
import { refuseDelivery } from './peer.mjs';
import { Refused } from './refused.mjs';
import { Malformed, batch } from './sections.mjs';

const CREDIT = 1000;
const BATCH = 0x80013700;

export class Producer {
  constructor(peer, link, entity) {
    this.peer = peer;
    this.link = link;
    this.entity = entity;
    if (entity.parent) throw new Refused(403, 'amqp:not-allowed', 'A sub-queue cannot be sent to.');
    entity.check([]);
    entity.links.add(this);
    const { maxMessageSize, maxBatchSize } = peer.namespace;
    link.local.attach.max_message_size = maxMessageSize;
    link.local.attach.properties = { 'com.microsoft:max-message-batch-size': types.wrap_ulong(maxBatchSize) };
    link.set_credit_window(CREDIT);
    link.flow(CREDIT);
  }

  received(bytes, delivery, format) {
    const { namespace } = this.peer;
    try {
      if (namespace.faults.busy()) throw Refused.throttled();
      this.#take(bytes, format);
    } catch (error) {
      if (error instanceof Malformed) refuseDelivery(delivery, new Refused(400, 'amqp:decode-error', error.message));
      else if (error instanceof Refused) refuseDelivery(delivery, error);
      else throw error;
      return;
    }
    if (!this.peer.cut()) answer(delivery, ACCEPTED);
  }

  // #take accepts all messages of a transfer, or throws and accepts none.
  #take(bytes, format) {
    const { namespace } = this.peer;
    const most = format === BATCH ? namespace.maxBatchSize : namespace.maxMessageSize;
    if (bytes.length > most) {
      throw new Refused(413, 'amqp:link:message-size-exceeded',
        `The received message (size:${bytes.length} bytes) exceeds the limit (${most} bytes) currently allowed on the link.`);
    }
    const messages = (format === BATCH ? batch(bytes) : [bytes]).map((one) => Message.read(one));
    messages.forEach(checkSizes);
    const now = Date.now();
    const operation = messages.some((message) => message.scheduledAt > now) ? 'schedule' : 'send';
    namespace.faults.sends.check(this.entity.path, operation, () => {
      this.entity.check(messages);
      namespace.counts.sends++;
      namespace.counts.messages += messages.length;
      for (const message of messages) this.entity.accept(message, now);
    });
  }

  detach(condition, description) { this.peer.detach(this.link, condition, description); }

  closed() { this.entity.links.delete(this); }
}
