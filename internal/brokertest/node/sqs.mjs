// A stand-in for Amazon SQS and SNS on a loopback port: PORT. Called with "keep" it stores its state in the folder DATA
// and reads it after a restart; otherwise the state is in memory.
import { AsyncLocalStorage } from "node:async_hooks";
import { buildApp } from "fauxqs";
import { SqsQueue, SqsStore } from "./node_modules/fauxqs/dist/sqs/sqsStore.js";
import { SnsStore } from "./node_modules/fauxqs/dist/sns/snsStore.js";
import { S3Store } from "./node_modules/fauxqs/dist/s3/s3Store.js";

const options = { logger: false };
if (process.argv.includes("keep")) options.stores = await stored(process.env.DATA);
const app = buildApp(options);
const caller = new AsyncLocalStorage(); // the request that is being handled
skipClosedRequests();
keepGroups();
readListsInOrder();
countAsOfNow();
console.log("listening", await app.listen({ host: "127.0.0.1", port: Number(process.env.PORT) }));
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => app.close().then(() => process.exit(0)));

// stored reads the state of a folder and makes the library write every change there. The library's own way to
// start with a folder listens on all interfaces.
async function stored(folder) {
	const { PersistenceManager } = await import("./node_modules/fauxqs/dist/persistence.js");
	const persistence = new PersistenceManager(folder);
	const stores = { sqsStore: new SqsStore(), snsStore: new SnsStore(), s3Store: new S3Store() };
	persistence.load(stores.sqsStore, stores.snsStore, stores.s3Store);
	for (const store of Object.values(stores)) store.persistence = persistence;
	for (const queue of stores.sqsStore.allQueues()) queue.persistence = persistence;
	return stores;
}

// skipClosedRequests delivers no messages to waiting requests whose connection is closed, like SQS. The library would
// deliver them and hide them for their visibility timeout.
function skipClosedRequests() {
	app.addHook("onRequest", (_request, reply, done) => {
		const own = { gone: false };
		reply.raw.once("close", () => { own.gone = true; });
		caller.run(own, done);
	});
	const { dequeue } = SqsQueue.prototype;
	SqsQueue.prototype.dequeue = function (...args) {
		return caller.getStore()?.gone ? [] : dequeue.apply(this, args);
	};
}

// keepGroups keeps the message group in standard queues, as SQS does for fair queues. The library keeps it in FIFO queues
// only.
function keepGroups() {
	app.addHook("preHandler", (request, _reply, done) => {
		const entries = request.body?.Entries ?? [request.body];
		const own = caller.getStore();
		if (own && Array.isArray(entries)) own.grouped = entries.filter((entry) => entry?.MessageGroupId);
		done();
	});
	const { createMessage } = SqsStore;
	SqsStore.createMessage = (body, attributes, delay, group, deduplication) => {
		const grouped = caller.getStore()?.grouped ?? [];
		const at = group ? -1 : grouped.findIndex((entry) => entry.MessageBody === body);
		const [entry] = at < 0 ? [] : grouped.splice(at, 1);
		return createMessage(body, attributes, delay, group ?? entry?.MessageGroupId, deduplication);
	};
}

// readListsInOrder sorts the entries of a batch to SNS by number: the SDK sorts the parameters by name, and the
// library reads them in the order of arrival.
function readListsInOrder() {
	const byNumber = new Intl.Collator("en", { numeric: true }).compare;
	app.addHook("preHandler", (request, _reply, done) => {
		const body = request.body;
		if (body?.Action) request.body = Object.fromEntries(Object.entries(body).sort(([a], [b]) => byNumber(a, b)));
		done();
	});
}

// countAsOfNow makes the counts of queues include messages that have become visible again since the last receive.
function countAsOfNow() {
	const { getAllAttributes } = SqsQueue.prototype;
	SqsQueue.prototype.getAllAttributes = function (...args) {
		this.processTimers();
		return getAllAttributes.apply(this, args);
	};
}
