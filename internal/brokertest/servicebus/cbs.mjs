// $cbs: clients present a token for each address before they attach to it.

import { Requests } from './request.mjs';
import { Refused } from './refused.mjs';

export class Cbs extends Requests {
  names = { status: 'status-code', description: 'status-description', condition: 'error-condition' };

  perform(operation, { application_properties: request, body }) {
    if (operation !== 'put-token') throw Refused.bad(`There is no operation '${operation}' here.`);
    const { namespace } = this.peer;
    namespace.counts.claims++;
    const rights = namespace.keys.rights(String(body), request.name);
    const path = decodeURIComponent(new URL(request.name).pathname.slice(1));
    namespace.faults.claims.check(path, operation);
    namespace.find(path.replace(/\/\$management$/i, ''));
    this.peer.authorize(path, rights);
  }
}
