// A Service Bus for tests. It listens on PORT for their requests; see README.md.

import { serve } from './control.mjs';

const port = Number(process.env.PORT ?? 0);
await serve(port);
console.log('listening', `http://127.0.0.1:${port}`);
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(0));
