// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';

import { addCommands } from '../actions/commands';
import { entriesOf } from '../actions/table';
import { targetGroup } from '../actions/target';
import type { ISession } from '../core/status';
import { IDocuments, IGpuShareModel } from '../tokens';
import { Lifetime } from './lifetime';
import { load } from './translation';
import { titleText } from '../words/short';

const lifetime = new Lifetime();

export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:commands',
  description: 'Adds the commands for GPU sharing.',
  autoStart: true,
  requires: [IGpuShareModel, IDocuments],
  optional: [
    IDocumentManager,
    INotebookTracker,
    IConsoleTracker,
    IFileBrowserFactory,
    ICommandPalette,
    ITranslator
  ],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    documents: IDocuments,
    manager: IDocumentManager | null,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    files: IFileBrowserFactory | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    const { commands, shell } = app;
    const trans = load(translator);
    const open = async ({ type, path, name }: ISession): Promise<void> => {
      const console = consoles?.find(
        widget => widget.sessionContext.session?.path === path
      );
      if (console) {
        shell.activateById(console.id);
      } else if (type === 'console' && commands.hasCommand(OPEN_CONSOLE)) {
        await commands.execute(OPEN_CONSOLE, { path, activate: true });
      } else if (type !== 'console' && manager) {
        manager.openOrReveal(path);
      } else {
        throw new Error(trans.__('%1 cannot be opened here.', name));
      }
    };
    const { sessions, contents } = app.serviceManager;
    const groupAt = (): string | null =>
      targetGroup({
        app,
        model,
        sessions,
        contents,
        notebooks,
        consoles,
        files
      });
    lifetime.add(
      addCommands({ commands, model, documents, trans, open, groupAt })
    );
    const category = titleText(trans);
    for (const entry of entriesOf('palette', { isPalette: true })) {
      if (entry && palette) {
        lifetime.add(palette.addItem({ ...entry, category }));
      }
    }
  },
  deactivate: lifetime.end
};

/** JupyterLab's command to show a running console. */
const OPEN_CONSOLE = 'console:open';
