// SPDX-License-Identifier: BSD-3-Clause

/** A message that translators get. */
export interface IMessage {
  /** Its source, below the folder of the package. */
  file: string;
  id: string;
  plural?: string;
  context?: string;
}

export interface IExtraction {
  messages: IMessage[];
  /** Calls that translate, but cannot be extracted. */
  unreadable: string[];
}

/** The messages of a source. */
export function extractFrom(file: string, text: string): IExtraction;

/** The messages of all sources and the schema. */
export function extract(): IExtraction;

/** The text of the catalogue with these messages. */
export function catalogueOf(messages: readonly IMessage[]): string;

/** The text of the committed catalogue. */
export function readCatalogue(): string;
