// Requests and answers over a pair of links, for $cbs and $management.

import { ACCEPTED, answer, decodeMessage, encodeMessage, types, typedMap } from './amqp.mjs';
import { Refused } from './refused.mjs';
import { VALUE, decode, sections } from './sections.mjs';

const CREDIT = 1000;

export class Requests {
  // The names of an answer's properties, as $management documents them:
  // https://learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-request-response
  names = { status: 'statusCode', description: 'statusDescription', condition: 'errorCondition' };

  constructor(peer, link) {
    this.peer = peer;
    link.set_credit_window(CREDIT);
    link.flow(CREDIT);
  }

  received(bytes, delivery) {
    answer(delivery, ACCEPTED);
    const request = decodeMessage(bytes);
    request.fields = new Map(fields(bytes));
    let status = 200;
    let description = 'OK';
    let condition;
    let body = {};
    try {
      body = this.perform(request.application_properties?.operation, request) ?? body;
      if (body === NOTHING) {
        [status, description, body] = [204, 'No content', {}];
      }
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      ({ status, message: description, condition } = error);
    }
    this.#answer(request, status, description, condition, body);
  }

  #answer(request, status, description, condition, body) {
    const { names } = this;
    const properties = { [names.status]: types.wrap_int(status), [names.description]: description };
    if (condition) properties[names.condition] = types.wrap_symbol(condition);
    this.peer.reply(request.reply_to, encodeMessage({
      correlation_id: request.message_id, application_properties: properties, body,
    }));
  }
}

// NOTHING is an empty body.
export const NOTHING = {};

// fields returns the fields of a body that is a map, with their types.
function fields(bytes) {
  const section = sections(bytes).find(({ code }) => code === VALUE);
  return section ? typedMap(decode(bytes.subarray(section.start, section.end))) : [];
}

// list returns the array of an AMQP array or list.
export function list(typed) {
  return Array.isArray(typed?.value) ? typed.value.map((item) => types.unwrap(item)) : [];
}
