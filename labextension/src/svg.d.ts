// SPDX-License-Identifier: BSD-3-Clause
declare module '*.svg' {
  const value: string;
  export default value;
}
