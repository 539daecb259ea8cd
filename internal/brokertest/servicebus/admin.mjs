// The administration over HTTP: entities are created, changed, shown, listed and deleted.

import http from 'node:http';

import * as atom from './atom.mjs';
import { MANAGE } from './keys.mjs';
import { entityName } from './namespace.mjs';
import { Queue } from './queue.mjs';
import { Refused } from './refused.mjs';
import { Rule } from './rule.mjs';
import { QUEUE, SUBSCRIPTION, TOPIC, read, write } from './settings.mjs';
import { Subscription, Topic } from './topic.mjs';
import { parse, tag } from './xml.mjs';

const PAGE = 100;
const DEFAULT_RULE = '$Default';

export class Admin {
  // A request that its client breaks off has no answer.
  #http = http.createServer((request, response) => this.#serve(request, response).catch(() => response.destroy()));

  constructor(namespace) {
    this.namespace = namespace;
  }

  listen() {
    return new Promise((resolve, reject) => {
      this.#http.once('error', reject);
      this.#http.listen({ host: '127.0.0.1', port: 0 }, () => resolve(this.#http.address().port));
    });
  }

  close() {
    this.#http.close();
    this.#http.closeAllConnections();
  }

  async #serve(request, response) {
    let body = '';
    for await (const chunk of request.setEncoding('utf8')) body += chunk;
    let status = request.method === 'PUT' && !request.headers['if-match'] ? 201 : 200;
    let text;
    try {
      this.namespace.counts.admin++;
      if (this.namespace.faults.busy()) throw new Refused(429, '', 'SubCode=42900. The request was terminated because the namespace is being throttled.');
      this.#authorize(request);
      text = this.#answer(request, body);
    } catch (error) {
      if (!(error instanceof Refused)) console.error('admin:', error.stack);
      status = error.status ?? 500;
      text = atom.error(status, error.message);
    }
    response.writeHead(status, { 'Content-Type': 'application/atom+xml;type=entry;charset=utf-8' }).end(text);
  }

  #authorize(request) {
    const rights = this.namespace.keys.rights(request.headers.authorization ?? '');
    if (!rights.has(MANAGE)) throw Refused.unauthorized('Manage,EntityRead claims required for this operation.');
  }

  #answer({ method, url, headers }, body) {
    const { pathname, searchParams } = new URL(url, 'http://admin');
    const path = decodeURIComponent(pathname).replace(/^\/+|\/+$/g, '');
    const place = new Place(this.namespace, path);
    const page = { skip: Number(searchParams.get('$skip') ?? 0), top: Number(searchParams.get('$top') ?? PAGE) };
    switch (method) {
      case 'GET': return place.get(page);
      case 'DELETE': return place.delete();
      case 'PUT': return place.put(parse(body)?.child('content')?.children[0], headers['if-match'] !== undefined);
      default: throw new Refused(405, '', 'This method is not allowed here.');
    }
  }
}

// Place is the entity or list at a path of the administration.
class Place {
  constructor(namespace, path) {
    this.namespace = namespace;
    this.path = path;
    const [, topic, subscription, rule] = /^(.+?)\/Subscriptions(?:\/([^/]+)(?:\/Rules(?:\/(.+))?)?)?$/i.exec(path) ?? [];
    this.rules = /\/Rules$/i.test(path) ? true : undefined;
    this.name = rule ?? subscription ?? path;
    this.topic = topic;
    this.subscription = subscription;
    this.rule = rule;
  }

  // --- reading

  get(page) {
    if (this.path === '$namespaceinfo') return this.#namespaceInfo();
    if (/^\$Resources\/Queues$/i.test(this.path)) return this.#list('Queues', this.#all(Queue), page);
    if (/^\$Resources\/Topics$/i.test(this.path)) return this.#list('Topics', this.#all(Topic), page);
    if (this.topic && !this.subscription) return this.#list('Subscriptions', this.#topic().subscriptions.values(), page);
    if (this.rules) return this.#list('Rules', this.#subscription().rules.values(), page);
    const found = this.#found();
    return found ? this.#entry(found) : atom.feed('Publicly Listed Services', []);
  }

  * #all(kind) {
    for (const entity of this.namespace.entities.values()) if (entity instanceof kind) yield entity;
  }

  #list(title, items, { skip, top }) {
    const sorted = [...items].sort((a, b) => ((a.name ?? a.path) < (b.name ?? b.path) ? -1 : 1));
    return atom.feed(title, sorted.slice(skip, skip + top).map((item) => this.#entry(item)));
  }

  #topic() {
    const topic = this.namespace.entities.get(this.topic.toLowerCase());
    if (!(topic instanceof Topic)) throw Refused.notFound(this.topic);
    return topic;
  }

  #subscription() {
    const subscription = this.#topic().subscriptions.get(this.subscription.toLowerCase());
    if (!subscription) throw Refused.notFound(this.path);
    return subscription;
  }

  #home() {
    if (this.rule) return this.#subscription().rules;
    return this.subscription ? this.#topic().subscriptions : this.namespace.entities;
  }

  #found() {
    try {
      return this.#home().get(this.name.toLowerCase());
    } catch (error) {
      if (error.status === 404) return undefined;
      throw error;
    }
  }

  // --- changing

  delete() {
    const home = this.#home();
    const entity = home.get(this.name.toLowerCase());
    if (!entity) throw Refused.notFound(this.path);
    home.delete(this.name.toLowerCase());
    entity.close?.();
    return '';
  }

  put(description, changes) {
    if (!description) throw Refused.bad('SubCode=40000. There is no description.');
    const home = this.#home();
    this.#checkName();
    const before = home.get(this.name.toLowerCase());
    if (changes && !before) throw Refused.notFound(this.path);
    if (!changes && before) throw new Refused(409, '', `SubCode=40900. Conflict. The entity '${this.path}' already exists.`);
    const entity = this.#made(description, before);
    if (!before) {
      this.#checkRoom(home);
      home.set(this.name.toLowerCase(), entity);
    }
    return this.#entry(home.get(this.name.toLowerCase()));
  }

  #checkRoom(home) {
    const { entities, subscriptions } = this.namespace.rules;
    const most = this.rule ? Infinity : this.subscription ? subscriptions : entities;
    if (home.size < most) return;
    throw new Refused(403, '', `SubCode=40300. The maximum number of resources has been reached or exceeded. Actual: ${home.size}, Max allowed: ${most}.`);
  }

  #checkName() {
    const longest = this.topic ? 50 : 260;
    if (this.name.length > longest || !/^[\w.\-~/$]+$/.test(this.name) || (this.topic && this.name.includes('/'))) {
      throw Refused.bad(`SubCode=40000. '${this.name}' is no valid name: at most ${longest} letters, digits, '.', '-', '_'.`);
    }
  }

  #made(description, before) {
    if (this.rule) return this.#madeRule(description);
    const kind = KINDS[description.name];
    if (!kind || (this.topic !== undefined) !== (kind.settings === SUBSCRIPTION)) throw Refused.bad(`SubCode=40000. '${description.name}' cannot be put here.`);
    const settings = read(kind.settings, description, before?.settings, this.namespace.rules);
    for (const target of [settings.forwardTo, settings.forwardDeadLetteredMessagesTo]) this.#checkTarget(target);
    if (before) {
      before.settings = settings;
      before.updatedAt = Date.now();
      for (const below of [before.deadLetters, before.transferDeadLetters]) if (below) below.settings = settings;
      if (settings.forwardTo) before.forwardAll(before.updatedAt);
      return before;
    }
    const entity = kind.make(this, settings);
    if (entity instanceof Subscription) this.#firstRule(entity, description.child('DefaultRuleDescription'));
    return entity;
  }

  #checkTarget(target) {
    if (target === undefined) return;
    const name = entityName(target);
    if (name.toLowerCase() === this.path.toLowerCase()) throw Refused.bad('SubCode=40000. An entity cannot forward to itself.');
    if (!this.namespace.entities.has(name.toLowerCase())) throw Refused.bad(`SubCode=40000. The entity to forward to, '${name}', does not exist.`);
  }

  #madeRule(description) {
    const rule = new Rule(this.name, description);
    this.#subscription().rules.set(this.name.toLowerCase(), rule);
    return rule;
  }

  #firstRule(subscription, description) {
    const name = description?.child('Name')?.text || DEFAULT_RULE;
    subscription.rules.set(name.toLowerCase(), new Rule(name, description));
  }

  make(Kind, settings) { return new Kind(this.namespace, this.path, settings); }

  makeSubscription(settings) { return new Subscription(this.namespace, this.#topic(), this.name, settings); }

  // --- showing

  #entry(item) {
    const address = `sb://${this.namespace.host}/${item.path ?? this.path}`;
    const { createdAt, updatedAt } = item;
    if (item instanceof Rule) return atom.entry({ name: item.name, address, kind: 'RuleDescription', inner: item.xml(), createdAt, updatedAt: createdAt });
    const kind = Object.keys(KINDS).find((name) => item instanceof KINDS[name].of);
    const shown = { ...item.settings };
    for (const key of ['forwardTo', 'forwardDeadLetteredMessagesTo']) {
      if (shown[key]) shown[key] = `sb://${this.namespace.host}/${entityName(shown[key])}`;
    }
    const inner = write(KINDS[kind].settings, shown).map(([name, value]) => tag(name, value)).join('') + counts(item);
    return atom.entry({ name: item.name ?? item.path, address, kind, inner, createdAt, updatedAt });
  }

  #namespaceInfo() {
    const inner = tag('CreatedTime', atom.time(this.namespace.createdAt)) + tag('MessagingSKU', 'Standard') +
      tag('ModifiedTime', atom.time(this.namespace.createdAt)) + tag('Name', 'test') + tag('NamespaceType', 'Messaging');
    const { createdAt, host } = this.namespace;
    return atom.entry({ name: 'test', address: `sb://${host}`, kind: 'NamespaceInfo', inner, createdAt, updatedAt: createdAt });
  }
}

// The first match is the kind: a subscription is a queue too.
const KINDS = {
  SubscriptionDescription: { of: Subscription, settings: SUBSCRIPTION, make: (place, settings) => place.makeSubscription(settings) },
  QueueDescription: { of: Queue, settings: QUEUE, make: (place, settings) => place.make(Queue, settings) },
  TopicDescription: { of: Topic, settings: TOPIC, make: (place, settings) => place.make(Topic, settings) },
};

function counts(item) {
  const times = ['CreatedAt', 'UpdatedAt', 'AccessedAt'].map((name) => tag(name, atom.time(item[name[0].toLowerCase() + name.slice(1)]))).join('');
  const count = item.counts ?? { active: 0, scheduled: item.scheduled.size, deadLetters: 0, transferDeadLetters: 0 };
  const details = tag('ActiveMessageCount', count.active) + tag('DeadLetterMessageCount', count.deadLetters) +
    tag('ScheduledMessageCount', count.scheduled) + tag('TransferMessageCount', 0) + tag('TransferDeadLetterMessageCount', count.transferDeadLetters);
  const total = count.active + count.scheduled + count.deadLetters + count.transferDeadLetters;
  const held = item.subscriptions ? tag('SubscriptionCount', item.subscriptions.size) : tag('MessageCount', total);
  return `${tag('SizeInBytes', item.bytes)}${held}${times}<CountDetails>${details}</CountDetails>`;
}
