// The shared access keys of a namespace, and the tokens that are signed with them.

import { createHmac, randomBytes } from 'node:crypto';
import { Refused } from './refused.mjs';

export const MANAGE = 'Manage';
export const SEND = 'Send';
export const LISTEN = 'Listen';

export class Keys {
  #keys = new Map();
  #bearers = new Map(); // tokens of an identity

  constructor() {
    this.add('RootManageSharedAccessKey', [MANAGE, SEND, LISTEN]);
  }

  // add creates a key with rights.
  add(name, rights) {
    const key = { name, secret: randomBytes(32).toString('base64'), rights: new Set(rights) };
    this.#keys.set(name, key);
    return key;
  }

  // addBearer accepts a token of an identity.
  addBearer(token, rights) { this.#bearers.set(token, new Set(rights)); }

  get(name) { return this.#keys.get(name); }

  // rights returns the rights of a token for an address, a URL; without one the token's own is not compared. It throws if the
  // token is unknown, or for another address.
  rights(token, address) {
    if (token.startsWith('SharedAccessSignature ')) return this.#signed(token.slice('SharedAccessSignature '.length), address);
    const bearer = this.#bearers.get(token.replace(/^Bearer /, ''));
    if (!bearer) throw Refused.unauthorized('InvalidIssuer: the identity of the token is not known.');
    return bearer;
  }

  #signed(fields, address) {
    const token = Object.fromEntries(fields.split('&').map((field) => {
      const at = field.indexOf('=');
      return [field.slice(0, at), field.slice(at + 1)];
    }));
    const key = this.#keys.get(decodeURIComponent(token.skn ?? ''));
    if (!key) throw Refused.unauthorized('InvalidSignature: there is no key of this name.');
    const signature = createHmac('sha256', key.secret).update(`${token.sr}\n${token.se}`).digest('base64');
    if (decodeURIComponent(token.sig ?? '') !== signature) throw Refused.unauthorized('InvalidSignature: The token has an invalid signature.');
    if (address && !covers(decodeURIComponent(token.sr ?? ''), address)) throw Refused.unauthorized(`InvalidAudience: The token is not for '${address}'.`);
    if (Number(token.se) * 1000 < Date.now()) throw Refused.unauthorized('ExpiredToken: The token is expired.');
    return key.rights;
  }
}

// covers reports whether a resource is an address or above it. It ignores the protocol and the case of letters.
function covers(resource, address) {
  const [above, below] = [resource, address].map((url) => decodeURIComponent(url).toLowerCase().replace(/^[a-z]+:\/\//, '').replace(/\/+$/, ''));
  return below === above || below.startsWith(`${above}/`);
}
