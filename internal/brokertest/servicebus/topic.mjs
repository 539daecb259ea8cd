// A topic: each message is copied to the subscriptions with a matching rule.

import { Entrance } from './entrance.mjs';
import { Queue } from './queue.mjs';

export class Topic extends Entrance {
  subscriptions = new Map(); // by lower-case name

  arrive(message, now) {
    for (const subscription of this.subscriptions.values()) subscription.offer(message, now);
  }

  close() {
    super.close();
    for (const subscription of this.subscriptions.values()) subscription.close();
  }
}

export class Subscription extends Queue {
  rules = new Map(); // by lower-case name

  constructor(namespace, topic, name, settings) {
    super(namespace, `${topic.path}/Subscriptions/${name}`, { ...settings, enablePartitioning: topic.settings.enablePartitioning });
    this.topic = topic;
    this.name = name;
  }

  // offer adds one copy of a message for all matching rules without action, and one for each matching rule with one.
  offer(message, now) {
    let plain = false;
    for (const rule of this.rules.values()) {
      if (!this.#matches(rule, message, now)) continue;
      if (rule.action) this.#take(message, now, rule);
      else plain = true;
    }
    if (plain) this.#take(message, now);
  }

  #matches(rule, message, now) {
    try {
      return rule.matches(message);
    } catch (error) {
      if (this.settings.deadLetteringOnFilterEvaluationExceptions) this.#unmatched(message, now, error);
      return false;
    }
  }

  #unmatched(message, now, error) {
    this.fill(this.deadLetters, message.copy(), now, 'FilterEvaluationException', error.message);
  }

  #take(message, now, rule) {
    const copy = message.copy();
    rule?.action(copy);
    if (this.sessions && copy.sessionId === undefined) return;
    this.arrive(copy, now);
  }
}
