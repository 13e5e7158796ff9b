// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ILayoutRestorer } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';

import { addCommands, entryLabel, PALETTE } from './actions/table';
import { Documents, IDocuments } from './state/documents';
import { FocusTeller } from './state/focus';
import { gpuShareIcon } from './icon';
import { GpuShareModel } from './state/model';
import { DEFAULTS, followPreferences } from './state/preferences';
import { GpuSharePanel } from './panel/sidebar';
import type { ISession } from './core/status';
import { statusBarPlugin } from './statusbar/item';
import { CommandIds, IGpuShareModel } from './tokens';

function load(translator: ITranslator | null): TranslationBundle {
  return (translator ?? nullTranslator).load('jupyter_gpushare');
}

const modelPlugin: JupyterFrontEndPlugin<IGpuShareModel> = {
  id: 'jupyter-gpushare:plugin',
  description: 'Knows the state of the GPUs that notebooks share.',
  autoStart: true,
  provides: IGpuShareModel,
  optional: [ISettingRegistry, ITranslator],
  activate: async (
    app: JupyterFrontEnd,
    settings: ISettingRegistry | null,
    translator: ITranslator | null
  ): Promise<IGpuShareModel> => {
    const { serverSettings, events, connectionFailure } = app.serviceManager;
    const model = new GpuShareModel({
      serverSettings,
      events,
      connectionFailure,
      preferences: DEFAULTS,
      trans: load(translator)
    });
    if (settings) {
      try {
        await followPreferences(settings, modelPlugin.id, preferences => {
          model.preferences = preferences;
        });
      } catch (error) {
        // What people set wrongly must not cost them the panel.
        console.error('The settings of GPU sharing could not be read.', error);
      }
    }
    return model;
  }
};

const documentsPlugin: JupyterFrontEndPlugin<IDocuments> = {
  id: 'jupyter-gpushare:documents',
  description: 'Knows which notebooks and consoles use the GPU.',
  autoStart: true,
  provides: IDocuments,
  requires: [IGpuShareModel],
  optional: [INotebookTracker, IConsoleTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    translator: ITranslator | null
  ): IDocuments => {
    const { sessions, kernelspecs } = app.serviceManager;
    const documents = new Documents({
      model,
      sessions,
      kernelspecs,
      shell: app.shell,
      notebooks,
      consoles,
      trans: load(translator)
    });
    new FocusTeller(model, documents);
    return documents;
  }
};

const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:commands',
  description: 'Adds what people can do about the GPUs that notebooks share.',
  autoStart: true,
  requires: [IGpuShareModel, IDocuments],
  optional: [IDocumentManager, IConsoleTracker, ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    documents: IDocuments,
    manager: IDocumentManager | null,
    consoles: IConsoleTracker | null,
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
    addCommands({ commands, model, documents, trans, open });
    for (const { command, args } of PALETTE) {
      palette?.addItem({ command, args, category: trans.__('GPU sharing') });
    }
  }
};

/** JupyterLab's command that shows a console whose session runs. */
const OPEN_CONSOLE = 'console:open';

const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:panel',
  description: 'Shows who runs and who waits on the GPUs that notebooks share.',
  autoStart: true,
  requires: [IGpuShareModel, IDocuments],
  optional: [ILayoutRestorer, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    documents: IDocuments,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ): void => {
    const { commands, shell } = app;
    const trans = load(translator);
    const panel = new GpuSharePanel({
      model,
      documents,
      commands,
      trans,
      load: async () =>
        (await import(/* webpackChunkName: "panel" */ './panel')).PanelContent
    });
    let side: string | null = null;
    const place = (): void => {
      if (side !== model.preferences.side) {
        side = model.preferences.side;
        if (!Array.from(shell.widgets(side)).includes(panel)) {
          shell.add(panel, side, { rank: 600, type: 'GPU sharing' });
        }
      }
    };
    place();
    model.changed.connect(place);
    restorer?.add(panel, panel.id);
    void app.restored.then(() => {
      // The layout that was restored may be from before people chose another side.
      side = null;
      place();
    });
    commands.addCommand(CommandIds.openPanel, {
      label: args =>
        args['isPalette']
          ? entryLabel(trans.__('Show the Panel'), args, trans)
          : trans.__('Show GPU Sharing'),
      caption: trans.__('Show who runs and who waits on the GPU'),
      icon: gpuShareIcon,
      execute: () => shell.activateById(panel.id),
      describedBy: { args: { type: 'object', properties: {} } }
    });
  }
};

const notebookPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:notebook',
  description:
    'Shows in each notebook whether it runs on the GPU, waits for it, or has waited.',
  autoStart: true,
  requires: [IGpuShareModel, IDocuments],
  optional: [INotebookTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    documents: IDocuments,
    notebooks: INotebookTracker | null,
    translator: ITranslator | null
  ): void => {
    if (!notebooks) {
      return;
    }
    // Until some kernel uses the GPU there is nothing to show in a notebook.
    let look: IDisposable | null = null;
    const update = (): void => {
      if (notebooks.size > 0) {
        look ??= model.look();
      } else {
        look?.dispose();
        look = null;
      }
      const { groups = [], unshared = [] } = model.status ?? {};
      if (notebooks.size > 0 && groups.length + unshared.length > 0) {
        model.changed.disconnect(update);
        notebooks.widgetAdded.disconnect(update);
        import(/* webpackChunkName: "notebooks" */ './notebook')
          .then(({ NotebookParts }) => {
            const { commands } = app;
            const trans = load(translator);
            new NotebookParts({ model, documents, commands, trans }).connect(
              notebooks
            );
          })
          .catch((error: unknown) => {
            console.error(error);
            // The next notebook that is opened tries again.
            notebooks.widgetAdded.connect(update);
          })
          .finally(() => {
            look?.dispose();
            look = null;
          });
      }
    };
    model.changed.connect(update);
    notebooks.widgetAdded.connect(update);
    update();
  }
};

export * from './state/documents';
export * from './tokens';

export default [
  modelPlugin,
  documentsPlugin,
  commandsPlugin,
  panelPlugin,
  statusBarPlugin,
  notebookPlugin
];
