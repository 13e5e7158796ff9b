// SPDX-License-Identifier: BSD-3-Clause
import { commandsPlugin } from './plugins/commands';
import { documentsPlugin } from './plugins/documents';
import { modelPlugin } from './plugins/model';
import { notebookPlugin } from './plugins/notebook';
import { panelPlugin } from './plugins/panel';
import { runningPlugin } from './plugins/running';
import { statusBarPlugin } from './plugins/statusbar';
import { timelinePlugin } from './plugins/timeline';

export * from './tokens';

export default [
  modelPlugin,
  documentsPlugin,
  commandsPlugin,
  panelPlugin,
  statusBarPlugin,
  notebookPlugin,
  runningPlugin,
  timelinePlugin
];
