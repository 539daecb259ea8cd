// The rules of a namespace: by default those of the service. A profile has others.

export const OUTLIVE = 'outlive';
export const UNCOUNTED = 'uncounted';
export const COUNTED = 'counted';

const AZURE = {
  locksOfEndedLinks: OUTLIVE, // or they end with the link, and the delivery does not count, or does
};

const PROFILES = {
  azure: AZURE,
  'links-uncounted': { ...AZURE, locksOfEndedLinks: UNCOUNTED },
  'links-counted': { ...AZURE, locksOfEndedLinks: COUNTED },
};

export function rulesOf(profile = 'azure') {
  const rules = PROFILES[profile];
  if (!rules) throw new Error(`there is no profile ${profile}`);
  return { ...rules };
}
