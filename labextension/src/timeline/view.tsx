// SPDX-License-Identifier: BSD-3-Clause
import type { MainAreaWidget } from '@jupyterlab/apputils';
import {
  CommandToolbarButton,
  HTMLSelect,
  ReactWidget
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import type { Panel } from '@lumino/widgets';
import React from 'react';

import { formatDuration } from '../core/format';
import type { ITranslation } from '../core/translation';
import { Clock } from '../panel/clock';
import { Timeline } from '../panel/timeline/timeline';
import { wordingOf } from '../state/wording';
import type { IDocuments, IGpuShareModel } from '../tokens';
import { CommandIds } from '../tokens';
import { explain } from '../words/availability';
import { loadingText } from '../words/short';

/** Lengths to choose from, in minutes. The scheduler keeps no more than the last one. */
const LENGTHS = [5, 10, 30];

export interface ITimelineOptions {
  model: IGpuShareModel;
  documents: IDocuments;
  commands: CommandRegistry;
  trans: ITranslation;
  /** How much is shown, in minutes. */
  minutes: number;
  /** Called when the user chooses another length. */
  onMinutes: (minutes: number) => void;
}

/** Add the timeline to a widget of the main area, with a choice of its length in the toolbar. */
export function fill(
  main: MainAreaWidget<Panel>,
  options: ITimelineOptions
): void {
  const { commands } = options;
  const view = new TimelineView(options);
  main.toolbar.addItem('length', new LengthChoice(view, options));
  if (commands.hasCommand(CommandIds.openPanel)) {
    const button = new CommandToolbarButton({
      commands,
      id: CommandIds.openPanel,
      // The command's caption is the tooltip of the icon.
      label: ''
    });
    main.toolbar.addItem('panel', button);
  }
  view.node.style.height = '100%';
  main.content.addWidget(view);
}

/** The timeline. It keeps the model up to date while it is visible. */
export class TimelineView extends ReactWidget {
  constructor(options: ITimelineOptions) {
    super();
    this._options = options;
    this._minutes = options.minutes;
    this._clock = new Clock(options.model);
    this.addClass('jp-GpuSharePanel');
  }

  /** How much is shown, in minutes. */
  get minutes(): number {
    return this._minutes;
  }
  set minutes(minutes: number) {
    this._minutes = minutes;
    this._options.onMinutes(minutes);
    this._follow();
    this.update();
  }

  dispose(): void {
    this._unfollow();
    super.dispose();
  }

  protected onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this._follow();
  }

  protected onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this._follow();
  }

  protected onAfterHide(msg: Message): void {
    super.onAfterHide(msg);
    this._unfollow();
  }

  protected onBeforeDetach(msg: Message): void {
    this._unfollow();
    super.onBeforeDetach(msg);
  }

  protected render(): JSX.Element {
    const { model, documents, trans } = this._options;
    const { status } = model;
    return (
      <div className="jp-GpuShare-body">
        {status?.timeline ? (
          <Timeline
            timeline={status.timeline}
            colours={model.colours}
            wording={wordingOf(status, model, documents, trans)}
            clock={this._clock}
            minutes={this._minutes}
          />
        ) : (
          <p className="jp-GpuShare-quiet">
            {(status && explain(status, trans)?.title) ?? loadingText(trans)}
          </p>
        )}
      </div>
    );
  }

  private _follow(): void {
    if (this.isVisible) {
      const { model } = this._options;
      const before = this._look;
      this._look = model.look({ timeline: true, minutes: this._minutes });
      before?.dispose();
      model.changed.connect(this._onChanged, this);
      this._clock.running = true;
      this._onChanged();
    }
  }

  private _unfollow(): void {
    this._options.model.changed.disconnect(this._onChanged, this);
    this._clock.running = false;
    this._look?.dispose();
    this._look = null;
  }

  private _onChanged(): void {
    this._clock.update();
    this.update();
  }

  private _clock: Clock;
  private _look: IDisposable | null = null;
  private _minutes: number;
  private _options: ITimelineOptions;
}

/** The choice of the length, in the toolbar. */
class LengthChoice extends ReactWidget {
  constructor(view: TimelineView, options: ITimelineOptions) {
    super();
    this._view = view;
    this._options = options;
  }

  protected render(): JSX.Element {
    const { trans } = this._options;
    return (
      <HTMLSelect
        aria-label={trans.__('Length of the timeline')}
        title={trans.__('How far back the timeline goes')}
        value={this._view.minutes}
        onChange={({ currentTarget }) => {
          this._view.minutes = Number(currentTarget.value);
          this.update();
        }}
      >
        {LENGTHS.map(minutes => (
          <option key={minutes} value={minutes}>
            {formatDuration(60 * minutes)}
          </option>
        ))}
      </HTMLSelect>
    );
  }

  private _options: ITimelineOptions;
  private _view: TimelineView;
}
