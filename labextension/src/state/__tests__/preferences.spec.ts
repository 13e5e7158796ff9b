// SPDX-License-Identifier: BSD-3-Clause
import schema from '../../../schema/plugin.json';
import { DEFAULTS, readPreferences } from '../preferences';

describe('readPreferences', () => {
  it('has the defaults of the schema', () => {
    const defaults = Object.fromEntries(
      Object.entries(schema.properties).map(([name, { default: value }]) => [
        name,
        value
      ])
    );
    expect(DEFAULTS).toEqual(defaults);
    expect(readPreferences({})).toEqual(DEFAULTS);
  });

  it('takes over valid settings', () => {
    const chosen = {
      notify: false,
      notificationDelay: 30,
      history: 10,
      side: 'left',
      units: 'decimal',
      statusBar: 'none',
      prefetch: false
    };
    expect(readPreferences(chosen)).toEqual(chosen);
  });

  it.each([
    { notify: 'yes' },
    { notificationDelay: -1 },
    { history: 31 },
    { history: null },
    { side: 'top' },
    { units: 1000 },
    { statusBar: true },
    { prefetch: 'on' }
  ])('rejects %j', wrong => {
    expect(readPreferences(wrong)).toEqual(DEFAULTS);
  });
});
