// The SQL of rules, in part: filters with comparison, arithmetic, LIKE, IN, EXISTS, IS NULL, AND, OR, NOT and
// parameters, over user. and sys. properties; actions that SET and REMOVE. An unknown value makes a comparison unknown.

import { types } from './amqp.mjs';
import { Refused } from './refused.mjs';

const TOKEN = /\s*(?:(N?'(?:[^']|'')*')|(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(\[[^\]]+\]|"[^"]+"|[A-Za-z_][\w]*)|(@[\w]+)|(<>|!=|<=|>=|[-=<>()+*/%,.;]))/y;

const SYSTEM = {
  messageid: 'messageId', correlationid: 'correlationId', to: 'to', replyto: 'replyTo', label: 'subject', subject: 'subject',
  sessionid: 'groupId', replytosessionid: 'replyToGroupId', contenttype: 'contentType',
};

// parseFilter returns a function that reports whether a message matches.
export function parseFilter(text, parameters) {
  const parser = new Parser(text, parameters);
  const condition = parser.or();
  parser.end();
  return (message) => condition(message) === true;
}

// parseAction returns a function that changes a message.
export function parseAction(text, parameters) {
  const parser = new Parser(text, parameters);
  const steps = [];
  do {
    if (!parser.ended()) steps.push(parser.step());
  } while (parser.has(';'));
  parser.end();
  return (message) => { for (const step of steps) step(message); };
}

class Parser {
  #tokens = [];
  #at = 0;

  constructor(text, parameters) {
    this.text = text;
    this.parameters = new Map([...parameters].map(([name, value]) => [name.replace(/^@/, '').toLowerCase(), value]));
    TOKEN.lastIndex = 0;
    while (/\S/.test(text.slice(TOKEN.lastIndex))) {
      const from = TOKEN.lastIndex;
      const found = TOKEN.exec(text);
      if (!found) throw this.wrong(`near '${text.slice(from)}'`);
      this.#tokens.push(token(found));
    }
  }

  wrong(where) { return Refused.bad(`SubCode=40000. The expression '${this.text}' is invalid ${where}.`); }

  // --- tokens

  ended() { return this.#at >= this.#tokens.length; }

  end() { if (!this.ended()) throw this.wrong(`near '${this.#tokens[this.#at].text}'`); }

  // has consumes a word or sign if it comes next.
  has(wanted) {
    const next = this.#tokens[this.#at];
    if (!next || next.kind === 'text' || next.quoted || next.text.toUpperCase() !== wanted) return false;
    this.#at++;
    return true;
  }

  need(wanted) { if (!this.has(wanted)) throw this.wrong(`where '${wanted}' is wanted`); }

  any(...wanted) { return wanted.find((one) => this.has(one)); }

  #take(kind) {
    const next = this.#tokens[this.#at];
    if (next?.kind !== kind) return undefined;
    this.#at++;
    return next;
  }

  // --- conditions

  or() {
    let left = this.and();
    while (this.has('OR')) left = either(left, this.and());
    return left;
  }

  and() {
    let left = this.not();
    while (this.has('AND')) left = both(left, this.not());
    return left;
  }

  not() {
    if (!this.has('NOT')) return this.comparison();
    const inner = this.not();
    return (message) => negated(inner(message));
  }

  comparison() {
    if (this.has('EXISTS')) {
      this.need('(');
      const property = this.property();
      this.need(')');
      return (message) => property.get(message) !== undefined;
    }
    const left = this.sum();
    const sign = this.any('=', '<>', '!=', '<=', '>=', '<', '>');
    if (sign) {
      const right = this.sum();
      return (message) => compare(sign, left(message), right(message));
    }
    if (this.has('IS')) {
      const not = this.has('NOT');
      this.need('NULL');
      return (message) => (left(message) === undefined) !== not;
    }
    const not = this.has('NOT');
    const test = this.test(left);
    if (!test) {
      if (not) throw this.wrong('after NOT');
      return left;
    }
    return not ? (message) => negated(test(message)) : test;
  }

  // test parses a test that may follow a value, with or without NOT.
  test(left) {
    if (this.has('LIKE')) {
      const pattern = this.sum();
      const escape = this.has('ESCAPE') ? this.sum() : () => undefined;
      return (message) => like(left(message), pattern(message), escape(message));
    }
    if (this.has('IN')) {
      this.need('(');
      const among = [this.sum()];
      while (this.has(',')) among.push(this.sum());
      this.need(')');
      return (message) => among.map((one) => compare('=', left(message), one(message))).reduce((a, b) => (a === true || b === true ? true : a ?? b), false);
    }
    return undefined;
  }

  // --- values

  sum() {
    let left = this.product();
    for (let sign; (sign = this.any('+', '-'));) left = arithmetic(sign, left, this.product());
    return left;
  }

  product() {
    let left = this.value();
    for (let sign; (sign = this.any('*', '/', '%'));) left = arithmetic(sign, left, this.value());
    return left;
  }

  value() {
    if (this.has('(')) {
      const inner = this.or();
      this.need(')');
      return inner;
    }
    if (this.has('-')) return arithmetic('-', () => 0, this.value());
    if (this.has('TRUE')) return () => true;
    if (this.has('FALSE')) return () => false;
    if (this.has('NULL')) return () => undefined;
    const literal = this.#take('text') ?? this.#take('number');
    if (literal) return () => literal.value;
    const parameter = this.#take('parameter');
    if (parameter) return this.#parameter(parameter.text);
    return this.property().get;
  }

  #parameter(name) {
    const key = name.slice(1).toLowerCase();
    if (!this.parameters.has(key)) throw this.wrong(`because ${name} is not given`);
    const value = this.parameters.get(key);
    return () => value;
  }

  // property returns the value of a name: of the user, or of the system.
  property() {
    const first = this.#take('name');
    if (!first) throw this.wrong('where a value is wanted');
    const scope = first.text.toLowerCase();
    if ((scope === 'sys' || scope === 'user') && this.has('.')) {
      const { text } = this.#take('name') ?? { text: '' };
      return scope === 'sys' ? this.#system(text) : user(text);
    }
    return user(first.text);
  }

  #system(name) {
    const field = SYSTEM[name.toLowerCase()];
    if (!field) throw this.wrong(`because there is no property sys.${name}`);
    return {
      get: (message) => {
        const value = message.field(field);
        return Buffer.isBuffer(value) ? value.toString('hex') : value;
      },
      set: () => { throw new Error(`sys.${name} cannot be set here`); },
    };
  }

  // --- actions

  step() {
    if (this.has('REMOVE')) {
      const property = this.property();
      return (message) => property.set(message, undefined);
    }
    this.need('SET');
    const property = this.property();
    this.need('=');
    const value = this.sum();
    return (message) => property.set(message, value(message));
  }
}

function token([, text, number, name, parameter, sign]) {
  if (text !== undefined) return { kind: 'text', text, value: text.slice(text.indexOf("'") + 1, -1).replaceAll("''", "'") };
  if (number !== undefined) return { kind: 'number', text: number, value: Number(number) };
  if (name !== undefined) {
    const quoted = name[0] === '[' || name[0] === '"';
    return { kind: 'name', quoted, text: quoted ? name.slice(1, -1) : name };
  }
  return parameter !== undefined ? { kind: 'parameter', text: parameter } : { kind: 'sign', text: sign };
}

function user(name) {
  return {
    get: (message) => {
      const value = message.value(name);
      return value instanceof Date ? value.getTime() : value ?? undefined;
    },
    set: (message, value) => message.modify([[name, value === undefined ? undefined : wrap(value)]]),
  };
}

function wrap(value) { return Number.isInteger(value) ? types.wrap_long(value) : types.wrap(value); }

// Three-valued logic: undefined is "unknown".
function negated(value) { return typeof value === 'boolean' ? !value : undefined; }

function both(left, right) {
  return (message) => {
    const a = left(message);
    if (a === false) return false;
    const b = right(message);
    return b === false ? false : a === true && b === true ? true : undefined;
  };
}

function either(left, right) {
  return (message) => {
    const a = left(message);
    if (a === true) return true;
    const b = right(message);
    return b === true ? true : a === false && b === false ? false : undefined;
  };
}

function compare(sign, left, right) {
  const [a, b] = [left, right].map((value) => (value instanceof Date ? value.getTime() : value));
  if (a === undefined || b === undefined || typeof a !== typeof b) return undefined;
  switch (sign) {
    case '=': return a === b;
    case '<>': case '!=': return a !== b;
    case '<': return a < b;
    case '<=': return a <= b;
    case '>': return a > b;
    default: return a >= b;
  }
}

function arithmetic(sign, left, right) {
  return (message) => {
    const [a, b] = [left(message), right(message)];
    if (sign === '+' && typeof a === 'string' && typeof b === 'string') return a + b;
    if (typeof a !== 'number' || typeof b !== 'number') return undefined;
    switch (sign) {
      case '+': return a + b;
      case '-': return a - b;
      case '*': return a * b;
      case '/': return b === 0 ? undefined : a / b;
      default: return b === 0 ? undefined : a % b;
    }
  };
}

function like(value, pattern, escape) {
  if (typeof value !== 'string' || typeof pattern !== 'string') return undefined;
  let expression = '';
  for (let i = 0; i < pattern.length; i++) {
    if (pattern[i] === escape) expression += quote(pattern[++i] ?? '');
    else if (pattern[i] === '%') expression += '[\\s\\S]*';
    else if (pattern[i] === '_') expression += '[\\s\\S]';
    else expression += quote(pattern[i]);
  }
  return new RegExp(`^${expression}$`).test(value);
}

function quote(character) { return character.replace(/[\\^$.*+?()[\]{}|/-]/g, '\\$&'); }
