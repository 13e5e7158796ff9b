// SPDX-License-Identifier: BSD-3-Clause

/**
 * Extracts the messages that translators get: `jlpm messages` writes them to
 * locale/jupyter_gpushare.pot, and a test fails while that file is out of date.
 *
 * It follows the rules of jupyterlab-translate, which makes JupyterLab's language packs
 * from the sources and the schema.
 */
const fs = require('fs');
const path = require('path');
const ts = require('typescript');

const CATALOGUE = path.join(__dirname, 'locale', 'jupyter_gpushare.pot');

/** The objects whose methods are read; jupyterlab-translate ignores all others. */
const ROOTS = [
  'trans',
  'this.trans',
  'this._trans',
  'this.props.trans',
  'props.trans'
];

/** The methods that translate, and the positions of their arguments. */
const FUNCTIONS = {
  __: { id: 0 },
  gettext: { id: 0 },
  _n: { id: 0, plural: 1 },
  ngettext: { id: 0, plural: 1 },
  _p: { context: 0, id: 1 },
  pgettext: { context: 0, id: 1 },
  _np: { context: 0, id: 1, plural: 2 },
  npgettext: { context: 0, id: 1, plural: 2 }
};

/** The texts of a schema that the server translates, with their contexts: as in jupyterlab_server. */
const SCHEMA = [
  [/^\/properties\/.*\/(title|description)$/, 'settings'],
  [/^\/definitions\/.*\/properties\/.*\/(title|description)$/, 'settings'],
  [/^\/(title|description)$/, 'schema'],
  [/^\/jupyter\.lab\.setting-icon-label$/, 'settings'],
  [/^\/jupyter\.lab\.menus\/.*\/label$/, 'menu'],
  [/^\/jupyter\.lab\.toolbars\/.*\/label$/, 'toolbar']
];

/** The text of an expression that consists of literals only, otherwise null. */
function literalOf(node) {
  if (node && ts.isStringLiteralLike(node)) {
    return node.text;
  }
  if (
    node &&
    ts.isBinaryExpression(node) &&
    node.operatorToken.kind === ts.SyntaxKind.PlusToken
  ) {
    const [left, right] = [literalOf(node.left), literalOf(node.right)];
    return left === null || right === null ? null : left + right;
  }
  return null;
}

/** The messages of a source in their order, and the calls that translate but cannot be extracted. */
function extractFrom(file, text) {
  const messages = [];
  const unreadable = [];
  const source = ts.createSourceFile(
    file,
    text,
    ts.ScriptTarget.Latest,
    true,
    file.endsWith('x') ? ts.ScriptKind.TSX : ts.ScriptKind.TS
  );
  const visit = node => {
    if (
      ts.isCallExpression(node) &&
      ts.isPropertyAccessExpression(node.expression)
    ) {
      const { expression, name } = node.expression;
      const root = expression.getText(source).replace(/\s|\?/g, '');
      const places = FUNCTIONS[name.text];
      if (places && /trans$/i.test(root)) {
        const message = { file };
        for (const [part, place] of Object.entries(places)) {
          message[part] = literalOf(node.arguments[place]);
        }
        if (ROOTS.includes(root) && !Object.values(message).includes(null)) {
          messages.push(message);
        } else {
          const { line } = source.getLineAndCharacterOfPosition(
            node.getStart(source)
          );
          unreadable.push(`${file}:${line + 1}: ${node.getText(source)}`);
        }
      }
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return { messages, unreadable };
}

/** The messages of a schema. */
function extractFromSchema(file, schema) {
  const messages = [];
  const visit = (value, at) => {
    if (typeof value === 'string') {
      const [, context] = SCHEMA.find(([pattern]) => pattern.test(at)) ?? [];
      if (context) {
        messages.push({ file, context, id: value });
      }
    } else if (value && typeof value === 'object') {
      for (const [key, child] of Object.entries(value)) {
        visit(child, `${at}/${key}`);
      }
    }
  };
  visit(schema, '');
  return messages;
}

/** The messages of all sources and the schema, and the calls that cannot be extracted. */
function extract() {
  const messages = [];
  const unreadable = [];
  const relative = file =>
    path.relative(__dirname, file).replaceAll(path.sep, '/');
  for (const file of ts.sys.readDirectory(
    path.join(__dirname, 'src'),
    ['.ts', '.tsx'],
    ['**/__tests__/**']
  )) {
    const found = extractFrom(relative(file), fs.readFileSync(file, 'utf8'));
    messages.push(...found.messages);
    unreadable.push(...found.unreadable);
  }
  const schema = path.join(__dirname, 'schema', 'plugin.json');
  messages.push(
    ...extractFromSchema(
      relative(schema),
      JSON.parse(fs.readFileSync(schema, 'utf8'))
    )
  );
  return { messages, unreadable };
}

/**
 * The text of the catalogue. It has neither dates nor numbers of lines, and a fixed order,
 * so that it changes only when a message does.
 */
function catalogueOf(messages) {
  const entries = new Map();
  for (const { file, context, id, plural } of messages) {
    const text = [
      ...(context === undefined ? [] : [`msgctxt ${quote(context)}`]),
      `msgid ${quote(id)}`,
      ...(plural === undefined
        ? ['msgstr ""']
        : [`msgid_plural ${quote(plural)}`, 'msgstr[0] ""', 'msgstr[1] ""'])
    ].join('\n');
    entries.set(text, (entries.get(text) ?? new Set()).add(file));
  }
  const sorted = [...entries].sort(([a], [b]) => (a < b ? -1 : 1));
  return [
    HEADER,
    ...sorted.map(
      ([text, files]) =>
        [...files]
          .sort()
          .map(file => `#: ${file}\n`)
          .join('') + `${text}\n`
    )
  ].join('\n');
}

const HEADER = `# Messages of jupyter-gpushare, for translators. Written by \`jlpm messages\`; do not edit.
msgid ""
msgstr ""
"Project-Id-Version: jupyter_gpushare\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
`;

/** A text as a string of a catalogue: JSON has the same escapes. */
function quote(text) {
  return JSON.stringify(text);
}

/** The committed catalogue. */
function readCatalogue() {
  return fs.readFileSync(CATALOGUE, 'utf8');
}

module.exports = { catalogueOf, extract, extractFrom, readCatalogue };

if (require.main === module) {
  const { messages, unreadable } = extract();
  fs.mkdirSync(path.dirname(CATALOGUE), { recursive: true });
  fs.writeFileSync(CATALOGUE, catalogueOf(messages));
  if (unreadable.length > 0) {
    throw new Error(`Cannot extract these messages:\n${unreadable.join('\n')}`);
  }
}
