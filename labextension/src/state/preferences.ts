// SPDX-License-Identifier: BSD-3-Clause
import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate } from '@lumino/disposable';

import type { IPreferences } from '../tokens';

/** What holds until people set something else: as in schema/plugin.json. */
export const DEFAULTS: Readonly<IPreferences> = {
  notify: true,
  notificationDelay: 10,
  history: 5,
  side: 'right',
  units: 'binary',
  statusBar: 'state-and-memory'
};

/** What people set; a wrong value is taken for none. */
export function readPreferences(
  settings: Readonly<Record<string, unknown>>
): IPreferences {
  const read = <K extends keyof IPreferences>(
    key: K,
    valid: (value: unknown) => boolean
  ): IPreferences[K] => {
    const value = settings[key];
    return valid(value) ? (value as IPreferences[K]) : DEFAULTS[key];
  };
  const within = (least: number, most: number) => (value: unknown) =>
    typeof value === 'number' && value >= least && value <= most;
  const among =
    (...values: string[]) =>
    (value: unknown) =>
      typeof value === 'string' && values.includes(value);
  return {
    notify: read('notify', value => typeof value === 'boolean'),
    notificationDelay: read('notificationDelay', within(1, 3600)),
    history: read('history', within(1, 30)),
    side: read('side', among('left', 'right')),
    units: read('units', among('binary', 'decimal')),
    statusBar: read('statusBar', among('state', 'state-and-memory', 'none'))
  };
}

/**
 * Follow what people set.
 *
 * @param id - The plugin whose schema it is.
 * @param apply - Is called with the preferences now, and after each change.
 * @returns What ends it.
 */
export async function followPreferences(
  registry: ISettingRegistry,
  id: string,
  apply: (preferences: IPreferences) => void
): Promise<IDisposable> {
  const settings = await registry.load(id);
  const update = (): void => apply(readPreferences(settings.composite));
  settings.changed.connect(update);
  update();
  return new DisposableDelegate(() => {
    settings.changed.disconnect(update);
  });
}
