// The administration's answers: Atom entries and feeds.

import { escape, tag } from './xml.mjs';

const SERVICE_BUS = 'http://schemas.microsoft.com/netservices/2010/10/servicebus/connect';

// entry returns an entity with the inner XML of its description.
export function entry({ name, address, kind, inner, createdAt, updatedAt }) {
  return `<entry xmlns="http://www.w3.org/2005/Atom"><id>${escape(address)}</id><title type="text">${escape(name)}</title>` +
    `<published>${time(createdAt)}</published><updated>${time(updatedAt)}</updated><link rel="self" href="${escape(address)}"/>` +
    `<content type="application/xml"><${kind} xmlns="${SERVICE_BUS}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">${inner}</${kind}></content></entry>`;
}

export function feed(title, entries) {
  return `<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">${escape(title)}</title><updated>${time(Date.now())}</updated>${entries.join('')}</feed>`;
}

export function error(status, detail) {
  return `<Error>${tag('Code', status)}${tag('Detail', detail)}</Error>`;
}

export function time(milliseconds) { return new Date(milliseconds).toISOString(); }
