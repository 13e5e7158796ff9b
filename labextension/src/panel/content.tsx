// SPDX-License-Identifier: BSD-3-Clause
import type { CommandRegistry } from '@lumino/commands';
import type { ISignal } from '@lumino/signaling';
import React from 'react';

import { noticesOf } from '../core/notices';
import { makeSections } from '../core/sections';
import type { IGroupShare } from '../core/shares';
import { makeShares } from '../core/shares';
import type { IGpu, IGroup, IStatus } from '../core/status';
import { isUnavailable } from '../core/status';
import type { ITranslation } from '../core/translation';
import type { IGpuShareModel } from '../tokens';
import type { IExplanation } from '../words/availability';
import { explain } from '../words/availability';
import { isolate, shortName } from '../words/mentions';
import type { Names } from '../words/names';
import { noticeText } from '../words/notices';
import { idleText, runningText } from '../words/panel';
import type { IWording } from '../words/short';
import { loadingText } from '../words/short';
import { Announcement } from './announce';
import { Boundary } from './boundary';
import { Card, UnsharedCard, UnusedCard } from './card';
import { Clock } from './clock';
import { useKeptFocus } from './focus';
import { Gpus } from './gpus';
import { Header } from './header';
import { Mode } from './mode';
import type { IRowContext } from './row';
import { NotSharing, OtherPrograms, Section } from './sections';
import { Timeline } from './timeline/timeline';

export interface IPanelProps {
  model: IGpuShareModel;
  commands: CommandRegistry;
  trans: ITranslation;
  /** The names of the groups, by their ids. */
  names: (status: IStatus) => Names;
  /** The id of the active document's group. */
  currentGroup: () => string | null;
  /** The id of the active document's kernel. */
  currentKernel: () => string | null;
  /** Emitted when another document becomes active, or a name changes. */
  changed?: ISignal<unknown, unknown>;
}

/**
 * The content of the panel. From top to bottom it answers: what about my notebook; which
 * notebooks are before it, and why; what is on the GPUs; what happened lately.
 */
export function PanelContent(props: IPanelProps): JSX.Element {
  const { model, commands, trans, changed } = props;
  const root = React.useRef<HTMLDivElement>(null);
  const clock = React.useMemo(() => new Clock(model), [model]);
  const visible = useVisible(root);
  const [fronts, redraw] = React.useReducer((count: number) => count + 1, 0);
  const status = useStatus(model, clock, visible);
  const keptFocus = useKeptFocus();

  React.useEffect(() => {
    changed?.connect(redraw);
    return () => {
      changed?.disconnect(redraw);
    };
  }, [changed]);

  const counts =
    visible &&
    status !== null &&
    status.availability.code !== 'server_unreachable' &&
    (status.groups.length > 0 || (status.timeline?.spans.length ?? 0) > 0);
  React.useEffect(() => {
    clock.running = counts;
    return () => {
      clock.running = false;
    };
  }, [clock, counts]);

  return (
    <div className="jp-GpuSharePanel" ref={root}>
      <Header
        availability={status?.availability ?? null}
        commands={commands}
        trans={trans}
      />
      <div className="jp-GpuShare-body" {...keptFocus}>
        {status === null ? (
          <p className="jp-GpuShare-quiet">{loadingText(trans)}</p>
        ) : (
          <Boundary trans={trans}>
            <Body {...props} status={status} clock={clock} fronts={fronts} />
          </Boundary>
        )}
      </div>
    </div>
  );
}

/** Return the last status. While the panel is hidden, the status does not change. */
function useStatus(
  model: IGpuShareModel,
  clock: Clock,
  visible: boolean
): IStatus | null {
  const shown = React.useRef({ status: model.status });
  const subscribe = React.useCallback(
    (redraw: () => void): (() => void) => {
      if (!visible) {
        return () => undefined;
      }
      // This is a store like the clock, so that React renders both together.
      const update = (): void => {
        // A new object even for the same status, because the preferences may have changed.
        shown.current = { status: model.status };
        clock.update();
        redraw();
      };
      update();
      model.changed.connect(update);
      return () => {
        model.changed.disconnect(update);
      };
    },
    [model, clock, visible]
  );
  return React.useSyncExternalStore(subscribe, () => shown.current).status;
}

/** Whether the element is visible. */
function useVisible(element: React.RefObject<Element>): boolean {
  const [inView, setInView] = React.useState(true);
  const [inFront, setInFront] = React.useState(!document.hidden);
  React.useEffect(() => {
    const update = (): void => setInFront(!document.hidden);
    const observer = new IntersectionObserver(entries =>
      setInView(entries[entries.length - 1]?.isIntersecting ?? true)
    );
    if (element.current) {
      observer.observe(element.current);
    }
    document.addEventListener('visibilitychange', update);
    return () => {
      observer.disconnect();
      document.removeEventListener('visibilitychange', update);
    };
  }, [element]);
  return inView && inFront;
}

interface IBodyProps extends IPanelProps {
  status: IStatus;
  clock: Clock;
  /** How many times the active document has changed. */
  fronts: number;
}

function Body(props: IBodyProps): JSX.Element {
  const { model, commands, trans, status, clock } = props;
  const { colours } = model;
  const names = props.names(status);
  const { units, history } = model.preferences;
  const { settings, hibernation, may, timeline } = status;
  const wording = React.useMemo<IWording>(
    () => ({ trans, units, names }),
    [trans, units, names]
  );
  const gpus = useNumbers(status.gpus);
  const context = React.useMemo<IRowContext>(
    () => ({
      wording,
      model,
      commands,
      clock,
      settings,
      gpus,
      mayAdjust: may.adjust
    }),
    [wording, model, commands, clock, settings, gpus, may.adjust]
  );
  const shares = useShares(status.groups);
  const current = props.currentGroup();
  const kernel = props.currentKernel();
  const sections = React.useMemo(
    () => makeSections(status.groups),
    [status.groups]
  );
  const explanation = explain(status, trans);
  const nameOf = (id: string): string => names.get(id) ?? shortName(id);
  const section = { context, colours, current, all: status.groups };
  return (
    <>
      {explanation && <Explanation {...explanation} />}
      <Front
        kernel={kernel}
        group={status.groups.find(({ id }) => id === current) ?? null}
        nameOf={nameOf}
        colours={colours}
        status={status}
        context={context}
      />
      {noticesOf(status).map(notice => (
        <p
          key={`${notice.group} ${notice.code}`}
          className="jp-GpuShare-notice"
        >
          {noticeText(isolate(nameOf(notice.group)), notice, trans)}
        </p>
      ))}
      <Section
        {...section}
        id="running"
        label={runningText(trans)}
        groups={sections.running}
      />
      <Section
        {...section}
        id="waiting"
        label={trans.__('Waiting')}
        groups={sections.waiting}
      />
      <Gpus
        status={status}
        shares={shares}
        colours={colours}
        wording={wording}
        clock={clock}
        seconds={60 * history}
      >
        {settings && (
          <Mode
            settings={settings}
            hibernation={hibernation}
            may={may.settings}
            commands={commands}
            wording={wording}
          />
        )}
      </Gpus>
      <Section
        {...section}
        id="idle"
        label={idleText(trans)}
        // The card shows the active notebook in full.
        groups={sections.idle.filter(({ id }) => id !== current)}
      />
      <OtherPrograms status={status} shares={shares} wording={wording} />
      <NotSharing
        unshared={status.unshared.filter(
          ({ kernel_id }) => kernel_id !== kernel
        )}
        trans={trans}
      />
      {timeline && status.gpus.length > 0 && (
        <Timeline
          timeline={timeline}
          colours={colours}
          wording={wording}
          clock={clock}
          minutes={history}
        />
      )}
      <Announcement
        group={status.groups.find(group => group.id === current) ?? null}
        nameOf={nameOf}
        fronts={props.fronts}
        trans={trans}
      />
    </>
  );
}

interface IFrontProps {
  kernel: string | null;
  group: IGroup | null;
  nameOf: (id: string) => string;
  colours: ReadonlyMap<string, number>;
  status: IStatus;
  context: IRowContext;
}

/** The card of the active notebook; nothing, if no document with a kernel is active. */
function Front(props: IFrontProps): JSX.Element | null {
  const { kernel, group, nameOf, colours, status, context } = props;
  const { trans } = context.wording;
  if (group) {
    return (
      <Card
        group={group}
        name={nameOf(group.id)}
        colour={colours.get(group.id) ?? 0}
        status={status}
        context={context}
      />
    );
  }
  const unshared = status.unshared.find(
    ({ kernel_id }) => kernel_id === kernel
  );
  if (unshared && !isUnavailable(status)) {
    return <UnsharedCard kernel={unshared} context={context} />;
  }
  return kernel && status.groups.length > 0 ? (
    <UnusedCard trans={trans} />
  ) : null;
}

/** The memory of the groups on each GPU. Unchanged arrays stay the same objects. */
function useShares(groups: IGroup[]): ReadonlyMap<string, IGroupShare[]> {
  const before = React.useRef<ReadonlyMap<string, IGroupShare[]>>(new Map());
  before.current = React.useMemo(
    () => makeShares(groups, before.current),
    [groups]
  );
  return before.current;
}

/** The numbers of the GPUs by their uuids; null for a single GPU. It stays the same object while the GPUs do. */
function useNumbers(gpus: IGpu[]): ReadonlyMap<string, number> | null {
  const key = gpus.map(({ uuid, index }) => `${index} ${uuid}`).join();
  return React.useMemo(
    () =>
      gpus.length > 1
        ? new Map(gpus.map(({ uuid, index }) => [uuid, index]))
        : null,
    // eslint-disable-next-line react-hooks/exhaustive-deps
    [key]
  );
}

function Explanation({ title, text, command }: IExplanation): JSX.Element {
  return (
    <div className="jp-GpuShare-explanation">
      <h3>{title}</h3>
      <p>{text}</p>
      {command && <code>{command}</code>}
    </div>
  );
}
