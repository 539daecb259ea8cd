// The XML of the administration. Prefixes of names are dropped.

const TOKEN = /<\?[^>]*\?>|<!--[\s\S]*?-->|<(\/?)([^\s/>]+)((?:\s+[^\s=]+\s*=\s*(?:"[^"]*"|'[^']*'))*)\s*(\/?)>|([^<]+)/g;
const ATTRIBUTE = /([^\s=]+)\s*=\s*(?:"([^"]*)"|'([^']*)')/g;
const ENTITIES = { lt: '<', gt: '>', amp: '&', quot: '"', apos: "'" };

// parse returns the root element: {name, attributes, children, text}.
export function parse(text) {
  const root = element('', {});
  const open = [root];
  for (const [whole, closing, name, attributes, empty, characters] of text.matchAll(TOKEN)) {
    const current = open.at(-1);
    if (characters !== undefined) current.text += unescape(characters);
    else if (whole.startsWith('<?') || whole.startsWith('<!')) continue;
    else if (closing) {
      if (open.length === 1) break;
      open.pop();
    } else {
      const child = element(local(name), Object.fromEntries([...attributes.matchAll(ATTRIBUTE)].map(
        ([, key, double, single]) => [local(key), unescape(double ?? single)])));
      current.children.push(child);
      if (!empty) open.push(child);
    }
  }
  return root.children[0];
}

function element(name, attributes) {
  return { name, attributes, children: [], text: '', child(wanted) { return this.children.find((c) => c.name === wanted); } };
}

function local(name) { return name.slice(name.indexOf(':') + 1); }

function unescape(text) {
  return text.replace(/&(?:#x([0-9a-f]+)|#(\d+)|(\w+));/gi, (whole, hex, decimal, name) => {
    if (name) return ENTITIES[name] ?? whole;
    return String.fromCodePoint(hex ? parseInt(hex, 16) : Number(decimal));
  });
}

export function escape(text) {
  return String(text).replace(/[<>&"'\r\n\t]/g, (c) => `&#${c.codePointAt(0)};`);
}

// tag returns an element with text, or nothing if there is no value.
export function tag(name, value) {
  return value === undefined || value === null ? '' : `<${name}>${escape(value)}</${name}>`;
}
