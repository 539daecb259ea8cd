// The settings of an entity: their XML elements, defaults and bounds.

import * as duration from './duration.mjs';
import { Refused } from './refused.mjs';

const SECOND = 1000;
const MINUTE = 60 * SECOND;

const kinds = {
  duration: { read: (text, name) => duration.parse(text) ?? wrong(name, text), write: duration.format },
  number: { read: (text, name) => (/^-?\d+$/.test(text) ? Number(text) : wrong(name, text)), write: String },
  flag: { read: (text, name) => (/^(true|false)$/.test(text) ? text === 'true' : wrong(name, text)), write: String },
  text: { read: (text) => text || undefined, write: String },
};

function wrong(name, text) { throw Refused.bad(`SubCode=40000. The value '${text}' of ${name} is invalid.`); }

function setting(element, key, kind, standard, { least = -Infinity, most = Infinity, fixed = false } = {}) {
  return { element, key, kind: kinds[kind], standard, least, most, fixed };
}

// The order is that of the service's XML. Some bounds are rules of the namespace.
const lockDuration = setting('LockDuration', 'lockDuration', 'duration', MINUTE);
const maxSize = setting('MaxSizeInMegabytes', 'maxSizeInMegabytes', 'number', 1024);
const requiresDuplicateDetection = setting('RequiresDuplicateDetection', 'requiresDuplicateDetection', 'flag', false, { fixed: true });
const requiresSession = setting('RequiresSession', 'requiresSession', 'flag', false, { fixed: true });
const ttl = setting('DefaultMessageTimeToLive', 'ttl', 'duration', Infinity);
const deadLetteringOnExpiration = setting('DeadLetteringOnMessageExpiration', 'deadLetteringOnMessageExpiration', 'flag', false);
const window = setting('DuplicateDetectionHistoryTimeWindow', 'duplicateDetectionWindow', 'duration', 10 * MINUTE, { least: 1, most: 7 * 24 * 60 * MINUTE });
const maxDeliveryCount = setting('MaxDeliveryCount', 'maxDeliveryCount', 'number', 10);
const batched = setting('EnableBatchedOperations', 'enableBatchedOperations', 'flag', true);
const status = setting('Status', 'status', 'text', 'Active');
const idle = setting('AutoDeleteOnIdle', 'autoDeleteOnIdle', 'duration', Infinity, { least: 5 * MINUTE });
const partitioning = setting('EnablePartitioning', 'enablePartitioning', 'flag', false, { fixed: true });
const forwardTo = setting('ForwardTo', 'forwardTo', 'text', undefined);
const forwardDeadLetters = setting('ForwardDeadLetteredMessagesTo', 'forwardDeadLetteredMessagesTo', 'text', undefined);
const metadata = setting('UserMetadata', 'userMetadata', 'text', undefined);
const maxMessageSize = setting('MaxMessageSizeInKilobytes', 'maxMessageSizeInKilobytes', 'number', 256);

export const QUEUE = [lockDuration, maxSize, requiresDuplicateDetection, requiresSession, ttl, deadLetteringOnExpiration, window,
  maxDeliveryCount, batched, status, idle, partitioning, forwardTo, forwardDeadLetters, metadata, maxMessageSize];

export const TOPIC = [ttl, maxSize, requiresDuplicateDetection, window, batched, status, metadata, idle, partitioning, maxMessageSize];

export const SUBSCRIPTION = [lockDuration, requiresSession, ttl, deadLetteringOnExpiration,
  setting('DeadLetteringOnFilterEvaluationExceptions', 'deadLetteringOnFilterEvaluationExceptions', 'flag', true),
  maxDeliveryCount, batched, status, forwardTo, metadata, forwardDeadLetters, idle];

// read returns the settings of an XML description. before are those of an entity that is changed.
export function read(kind, description, before, rules) {
  const settings = { maxSizeInMegabytes: Math.min(1024, rules.maxSizeInMegabytes[1]) };
  for (const { element, key, kind: { read: of }, standard, fixed, ...bounds } of kind) {
    const child = description.child(element);
    const [least, most] = rules[key] ?? [bounds.least, bounds.most];
    const value = child ? of(child.text.trim(), element) : typeof standard === 'number' ? Math.min(standard, most) : standard;
    if (typeof value === 'number' && (value < least || value > most)) {
      throw Refused.bad(`SubCode=40000. The value '${child?.text}' of ${element} is out of range.`);
    }
    if (fixed && before && value !== before[key]) throw Refused.bad(`SubCode=40000. The value of ${element} cannot be changed.`);
    settings[key] = value;
  }
  return settings;
}

// write lists the elements of a description.
export function write(kind, settings) {
  return kind.filter(({ key }) => settings[key] !== undefined)
    .map(({ element, key, kind: { write: as } }) => [element, as(settings[key])]);
}
