// The rules of a namespace: by default those of the service. A profile has others.

export const OUTLIVE = 'outlive';
export const UNCOUNTED = 'uncounted';
export const COUNTED = 'counted';

const SECOND = 1000;
const MINUTE = 60 * SECOND;

// https://learn.microsoft.com/azure/service-bus-messaging/service-bus-quotas
const AZURE = {
  locksOfEndedLinks: OUTLIVE, // or they end with the link, and the delivery does not count, or does
  lockDuration: [5 * SECOND, 5 * MINUTE],
  ttl: [1, Infinity],
  maxDeliveryCount: [1, 2147483647],
  maxSizeInMegabytes: [1, 81920],
  entities: 10_000, // queues and topics
  subscriptions: 2000, // of a topic
  connections: 5000,
};

// https://learn.microsoft.com/azure/service-bus-messaging/overview-emulator
const EMULATOR = {
  ...AZURE,
  ttl: [1, 60 * MINUTE],
  maxDeliveryCount: [1, 10],
  maxSizeInMegabytes: [1, 100],
  entities: 50,
  subscriptions: 50,
  connections: 10,
};

const PROFILES = {
  azure: AZURE,
  emulator: EMULATOR,
  'links-uncounted': { ...AZURE, locksOfEndedLinks: UNCOUNTED },
  'links-counted': { ...AZURE, locksOfEndedLinks: COUNTED },
};

export function rulesOf(profile = 'azure') {
  const rules = PROFILES[profile];
  if (!rules) throw new Error(`there is no profile ${profile}`);
  return { ...rules };
}
