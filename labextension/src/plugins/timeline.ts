// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ILabShell, ILayoutRestorer } from '@jupyterlab/application';
import { MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { ITranslator } from '@jupyterlab/translation';
import { Panel } from '@lumino/widgets';

import { addPageCommand } from '../actions/page';
import { gpuShareIcon } from '../icon';
import { CommandIds, IDocuments, IGpuShareModel } from '../tokens';
import { timelineText } from '../words/short';
import { Lifetime } from './lifetime';
import { load } from './translation';

const lifetime = new Lifetime();

/** The initial length in minutes: as much as the scheduler keeps. */
const MINUTES = 30;

export const timelinePlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:timeline',
  description: 'Adds the GPU timeline to the main area.',
  autoStart: true,
  requires: [IGpuShareModel, IDocuments],
  optional: [ILabShell, ILayoutRestorer, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    documents: IDocuments,
    shell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ): void => {
    // In Notebook 7, the main area can only show the notebook.
    if (!shell) {
      return;
    }
    const { commands } = app;
    const trans = load(translator);
    const tracker = lifetime.add(
      new WidgetTracker<MainAreaWidget>({ namespace: 'gpushare-timeline' })
    );
    let minutes = MINUTES;
    const make = (): MainAreaWidget => {
      const content = new Panel();
      content.title.label = timelineText(trans);
      content.title.icon = gpuShareIcon;
      const main = new MainAreaWidget({
        content,
        reveal: import(/* webpackChunkName: "panel" */ '../timeline').then(
          ({ fill }) => {
            if (!main.isDisposed) {
              fill(main, {
                model,
                documents,
                commands,
                trans,
                minutes,
                onMinutes: chosen => {
                  minutes = chosen;
                  void tracker.save(main);
                }
              });
            }
          }
        ),
        translator: translator ?? undefined
      });
      main.id = 'jupyter-gpushare-timeline';
      return main;
    };
    lifetime.add(
      addPageCommand({
        commands,
        model,
        trans,
        command: CommandIds.openTimeline,
        execute: args => {
          let main = tracker.currentWidget;
          if (!main) {
            minutes = Number(args['minutes']) || MINUTES;
            main = lifetime.add(make());
            void tracker.add(main);
            shell.add(main, 'main');
          }
          shell.activateById(main.id);
        }
      })
    );
    if (restorer) {
      void restorer.restore(tracker, {
        command: CommandIds.openTimeline,
        args: () => ({ minutes }),
        name: () => 'timeline'
      });
    }
  },
  deactivate: lifetime.end
};
