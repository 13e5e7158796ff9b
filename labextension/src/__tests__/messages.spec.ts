// SPDX-License-Identifier: BSD-3-Clause
import {
  catalogueOf,
  extract,
  extractFrom,
  readCatalogue
} from '../../messages';

const { messages, unreadable } = extract();

describe('the extraction of messages', () => {
  it('reads every call that translates', () => {
    expect(messages.length).toBeGreaterThan(300);
    expect(unreadable).toEqual([]);
  });

  it('finds each text in one place', () => {
    const seen = new Set<string>();
    const repeated: string[] = [];
    for (const { file, id, context } of messages) {
      // A text without letters only joins others. The schema cannot use functions.
      if (seen.has(id) && /\p{L}/u.test(id) && context === undefined) {
        repeated.push(`${file}: ${id}`);
      }
      seen.add(id);
    }
    expect(repeated).toEqual([]);
  });

  it('finds what JupyterLab shows of the schema', () => {
    const contexts = messages
      .filter(({ file }) => file === 'schema/plugin.json')
      .map(({ context, id }) => `${context}: ${id}`);
    expect(contexts).toContain('schema: GPU sharing');
    expect(contexts).toContain('settings: GPU sharing');
    expect(contexts).toContain('settings: Right');
    expect(contexts.join()).not.toContain('gpushare:');
  });

  it.each([
    ["wording.trans.__('lost')", 0, 1],
    ["this._options.trans.__('lost')", 0, 1],
    ["trans.__(isOn ? 'lost' : 'lost too')", 0, 1],
    ['trans.__(`lost ${name}`)', 0, 1],
    ["trans._n('one', more, 2)", 0, 1],
    ["trans.__('found')", 1, 0],
    ["trans.__('found ' + 'too', 7)", 1, 0],
    ["this._trans._n('one', 'more', 2)", 1, 0],
    ["props.trans._p('context', 'found')", 1, 0],
    ["document.__('of others')", 0, 0]
  ])('reads %s correctly', (source, found, lost) => {
    const { messages, unreadable } = extractFrom('test.ts', source);
    expect([messages.length, unreadable.length]).toEqual([found, lost]);
  });
});

describe('the catalogue', () => {
  it('has one entry for each message, in a fixed order', () => {
    const { messages } = extractFrom(
      'b.ts',
      `trans._n('%1 "GPU"', '%1 GPUs', 2);
       trans.__('All\\nlines');
       trans._p('menu', 'All\\nlines');`
    );
    const [, ...entries] = catalogueOf([
      ...messages,
      { file: 'a.ts', id: 'All\nlines' }
    ]).split('\n\n');
    expect(entries).toEqual([
      '#: b.ts\nmsgctxt "menu"\nmsgid "All\\nlines"\nmsgstr ""',
      '#: b.ts\nmsgid "%1 \\"GPU\\""\nmsgid_plural "%1 GPUs"\nmsgstr[0] ""\nmsgstr[1] ""',
      '#: a.ts\n#: b.ts\nmsgid "All\\nlines"\nmsgstr ""\n'
    ]);
  });

  it('is up to date (run `jlpm messages` otherwise)', () => {
    expect(readCatalogue()).toBe(catalogueOf(messages));
  });
});
