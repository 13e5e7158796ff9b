// SPDX-License-Identifier: BSD-3-Clause
/** Which messages translators are given: by the rules of jupyterlab-translate, which reads the sources. */
import * as ts from 'typescript';

/** What the functions that translate may belong to; others are not read. */
const ROOTS = [
  'trans',
  'this.trans',
  'this._trans',
  'this.props.trans',
  'props.trans'
];

/** The functions that translate, and which of their arguments are messages. */
const FUNCTIONS: Record<string, number[]> = {
  __: [0],
  gettext: [0],
  _n: [0, 1],
  ngettext: [0, 1],
  _p: [1],
  pgettext: [1],
  _np: [1, 2],
  npgettext: [1, 2]
};

/** Messages in the order in which they stand, and calls that translate but are not read. */
export interface IExtraction<T> {
  messages: T;
  unreadable: string[];
}

/** The text of an expression that is made of literals only; null if it is not. */
function literalOf(node: ts.Expression | undefined): string | null {
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

/** What is read of a source. */
export function extractFrom(file: string, text: string): IExtraction<string[]> {
  const messages: string[] = [];
  const unreadable: string[] = [];
  const source = ts.createSourceFile(
    file,
    text,
    ts.ScriptTarget.Latest,
    true,
    file.endsWith('x') ? ts.ScriptKind.TSX : ts.ScriptKind.TS
  );
  const visit = (node: ts.Node): void => {
    if (
      ts.isCallExpression(node) &&
      ts.isPropertyAccessExpression(node.expression)
    ) {
      const { expression, name } = node.expression;
      const root = expression.getText(source).replace(/\s|\?/g, '');
      const places = FUNCTIONS[name.text];
      if (places && /trans$/i.test(root)) {
        const found = places.map(place => literalOf(node.arguments[place]));
        if (ROOTS.includes(root) && !found.includes(null)) {
          // A text whose plural is the same is one text.
          messages.push(...new Set(found as string[]));
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

/** What is read of all our sources, and the texts that more than one place has. */
export function extract(): IExtraction<ReadonlySet<string>> & {
  repeated: string[];
} {
  const messages = new Set<string>();
  const repeated: string[] = [];
  const unreadable: string[] = [];
  // Jest runs in the folder of the package.
  for (const path of ts.sys.readDirectory(
    'src',
    ['.ts', '.tsx'],
    ['**/__tests__/**']
  )) {
    const found = extractFrom(path, ts.sys.readFile(path) ?? '');
    for (const message of found.messages) {
      // What only puts texts together has no words.
      if (messages.has(message) && /\p{L}/u.test(message)) {
        repeated.push(`${path}: ${message}`);
      }
      messages.add(message);
    }
    unreadable.push(...found.unreadable);
  }
  return { messages, unreadable, repeated };
}
