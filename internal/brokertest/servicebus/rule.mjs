// A rule of a subscription: it selects messages, and may change them.

import { Refused } from './refused.mjs';
import { parseAction, parseFilter } from './sql.mjs';
import { escape, tag } from './xml.mjs';

// FIELDS are the fields of a correlation filter, with the values of a message for the comparison.
const FIELDS = {
  CorrelationId: 'correlationId', MessageId: 'messageId', To: 'to', ReplyTo: 'replyTo', Label: 'subject',
  SessionId: 'groupId', ReplyToSessionId: 'replyToGroupId', ContentType: 'contentType',
};

export class Rule {
  createdAt = Date.now();

  // The description is XML; without one the rule takes all messages.
  constructor(name, description) {
    this.name = name;
    this.filter = description?.child('Filter') ?? { attributes: { type: 'TrueFilter' }, child: () => undefined };
    this.actionElement = description?.child('Action');
    this.matches = filterOf(this.filter);
    this.action = actionOf(this.actionElement);
  }

  // xml returns the inner XML of the description. The SDK needs the types of filter and action.
  xml() {
    return `<Filter i:type="${escape(this.filter.attributes.type)}">${content(this.filter)}</Filter>` +
      `<Action i:type="${this.action ? 'SqlRuleAction' : 'EmptyRuleAction'}">${this.action ? content(this.actionElement) : ''}</Action>` +
      tag('CreatedAt', new Date(this.createdAt).toISOString()) + tag('Name', this.name);
  }
}

function filterOf(filter) {
  switch (filter.attributes.type) {
    case 'TrueFilter': return () => true;
    case 'FalseFilter': return () => false;
    case 'CorrelationFilter': return correlation(filter);
    case 'SqlFilter': return parseFilter(filter.child('SqlExpression')?.text ?? '', parameters(filter, 'Parameters'));
    default: throw Refused.bad(`SubCode=40000. There is no filter '${filter.attributes.type}'.`);
  }
}

function actionOf(element) {
  const text = element?.attributes.type === 'SqlRuleAction' ? element.child('SqlExpression')?.text : undefined;
  return text ? parseAction(text, parameters(element, 'Parameters')) : undefined;
}

// correlation compares all named fields for equality.
function correlation(filter) {
  const fields = Object.entries(FIELDS).map(([name, field]) => [field, filter.child(name)?.text]).filter(([, value]) => value !== undefined);
  const properties = [...parameters(filter, 'Properties')];
  if (fields.length + properties.length === 0) throw Refused.bad('SubCode=40000. A correlation filter has to name something.');
  return (message) => fields.every(([field, value]) => String(message.field(field) ?? '\0') === value) &&
    properties.every(([name, value]) => equal(message.value(name), value));
}

function equal(a, b) {
  if (a instanceof Date) return a.getTime() === (b instanceof Date ? b.getTime() : NaN);
  return typeof a === typeof b && a === b;
}

// parameters returns the typed values of a list of keys and values.
function parameters(element, name) {
  const pairs = element.child(name)?.children ?? [];
  return new Map(pairs.map((pair) => [pair.child('Key')?.text ?? '', typed(pair.child('Value'))]));
}

function typed(value) {
  const type = value?.attributes.type?.split(':').pop();
  switch (type) {
    case 'boolean': return value.text === 'true';
    case 'int': case 'long': case 'double': return Number(value.text);
    case 'dateTime': return new Date(value.text);
    default: return value?.text ?? '';
  }
}

// content returns the inner XML of a filter or an action.
function content(element) {
  return (element.children ?? []).map((child) => {
    if (child.name !== 'Properties' && child.name !== 'Parameters') return tag(child.name, child.text);
    const pairs = child.children.map((pair) => {
      const value = pair.child('Value');
      const type = value?.attributes.type?.split(':').pop() ?? 'string';
      return `<KeyValueOfstringanyType>${tag('Key', pair.child('Key')?.text)}` +
        `<Value xmlns:x="http://www.w3.org/2001/XMLSchema" i:type="x:${escape(type)}">${escape(value?.text ?? '')}</Value></KeyValueOfstringanyType>`;
    });
    return `<${child.name}>${pairs.join('')}</${child.name}>`;
  }).join('');
}
